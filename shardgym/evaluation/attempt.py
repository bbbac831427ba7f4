"""One solver on one task: the call, its time, and what can be wrong with what comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from shardgym.costs.base import CostModel
from shardgym.errors import NO_PLAN, InfeasiblePlanError, InputError
from shardgym.evaluation.entrant import Entrant
from shardgym.evaluation.result import Status
from shardgym.plan import ShardingPlan
from shardgym.provenance import utc_now
from shardgym.solver import call_solver
from shardgym.task import ShardingTask

#: Takes a heading and a traceback.
ErrorLog = Callable[[str, str], None]

_LONGEST_REASON = 500


@dataclass(frozen=True)
class Attempt:
    """What a solver made of a task, before it is scored.

    Attributes:
        entrant: who solved.
        seed: given to the solver.
        started: UTC.
        seconds: that the call took.
        failure: status other than "ok"; None for a feasible plan.
        reason: one line, why it failed.
        plan: None when there is none for this task.
    """

    entrant: Entrant
    seed: int
    started: str
    seconds: float
    failure: Status | None = None
    reason: str | None = None
    plan: ShardingPlan | None = None


def one_line(error: BaseException, with_type: bool = True) -> str:
    """Return an error as one line of at most 500 characters that UTF-8 can write."""
    text = " ".join(_text(error).split())
    line = f"{type(error).__name__}: {text}" if with_type and text else text or type(error).__name__
    line = line.encode(errors="backslashreplace").decode()
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its message cannot be printed"


def attempt(
    entrant: Entrant, task: ShardingTask, oracle: CostModel, seed: int, time_limit_s: float | None, log: ErrorLog
) -> Attempt:
    """Let a solver solve a copy of a task and time the call, after it has warmed up once.

    Whatever the solver raises becomes a failure with a reason, except a keyboard interrupt; so does changing the task.
    Wherever the solver goes, the current folder stays.
    """
    before = task.to_json()
    own = ShardingTask.from_json(before)
    with contextlib.chdir(os.curdir):
        tried = _called(entrant, own, oracle, seed, time_limit_s, log)
    if _is_unchanged(own, before):
        return tried
    return dataclasses.replace(tried, failure="error", reason="the solver changed the task", plan=None)


def _called(
    entrant: Entrant, task: ShardingTask, oracle: CostModel, seed: int, time_limit_s: float | None, log: ErrorLog
) -> Attempt:
    started, clock = utc_now(), time.perf_counter()
    failure: Status | None = None
    reason, answer = None, None
    try:
        entrant.warm_up(task, oracle)
        clock = time.perf_counter()
        answer = call_solver(entrant.solver, task, oracle, seed, time_limit_s=time_limit_s)
    except NO_PLAN as error:
        failure, reason = "infeasible", one_line(error, with_type=False)
    except (Exception, SystemExit) as error:
        failure, reason = "error", one_line(error)
        log(f"{entrant.spec.title}, task {task.name or task.digest[:12]}, seed {seed}", traceback.format_exc())
    seconds = time.perf_counter() - clock
    plan = None
    if failure is None:
        plan, failure, reason = _inspect(answer, task)
    return Attempt(entrant, seed, started, seconds, failure, reason, plan)


def _is_unchanged(task: ShardingTask, before: str) -> bool:
    try:
        return task.to_json() == before
    except (ValueError, TypeError, AttributeError):  # changed into something that is no record any more
        return False


def _inspect(answer: object, task: ShardingTask) -> tuple[ShardingPlan | None, Status | None, str | None]:
    """Return (plan, failure, reason) of what a solver returned."""
    if not isinstance(answer, ShardingPlan):
        return None, "error", f"the solver returned {type(answer).__name__}, not a ShardingPlan"
    try:
        # Through JSON: a subclass, or a plan that was changed by force, does not get past the checks.
        plan = ShardingPlan.from_json(answer.to_json())
        plan.validate(task)
    except InfeasiblePlanError as error:
        return plan, "infeasible", one_line(error, with_type=False)
    except InputError as error:
        return None, "error", one_line(error, with_type=False)
    except Exception as error:  # a subclass with methods of its own, or fields that were changed by force
        return None, "error", f"the solver returned a broken plan: {one_line(error)}"
    return plan, None, None
