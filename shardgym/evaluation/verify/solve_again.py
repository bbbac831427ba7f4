"""Solving the tasks of stored records again, and comparing the new plans with the stored ones."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shardgym.costs.base import CostModel
from shardgym.costs.judge_guard import judges_closed
from shardgym.errors import InputError, MissingDependencyError
from shardgym.evaluation.result import RECORDS, RUN_INFO, Result, RunInfo, read_task
from shardgym.evaluation.solver_process import SolverHost, host_solver
from shardgym.evaluation.solver_spec import SolverSpec, check_solvers
from shardgym.evaluation.solving import Attempt
from shardgym.evaluation.verify.records import RecordCheck, StoredRecord

#: Returns the cost model of a name and settings, or None and why it cannot be made here.
GetCost = Callable[[str, Mapping[str, Any]], tuple[CostModel | None, str]]

#: Settings in somebody else's records may ask for anything: a plan may take so many seconds unless more are given, ...
TIMEOUT_S = 600.0
#: ... and so much memory: ten times what the hungriest of our solvers needs.
MAX_BYTES = 2**34


def solve_again(
    records: Sequence[StoredRecord],
    checks: Mapping[str, RecordCheck],
    trust: Collection[str],
    get_oracle: GetCost,
    timeout_s: float = TIMEOUT_S,
    budget_s: float | None = None,
) -> Generator[tuple[RecordCheck, str]]:
    """Solve with the oracle that `run.json` names, as the run did, and compare plans.

    Args:
        records: of any files.
        checks: outcome of scoring them again, by file and line.
        trust: solvers of the form `module:Class` that may be imported.
        get_oracle: makes oracles.
        timeout_s: seconds that a plan may take.
        budget_s: seconds after which no other record is begun; None for all records.

    Yields:
        The updated check of every record, in their order, and why it could not be solved again; "" where it was.
    """
    hosts: dict[tuple[str, str, int], SolverHost | str] = {}
    end = math.inf if budget_s is None else time.monotonic() + budget_s
    with ExitStack() as stack:
        stack.enter_context(judges_closed())
        for record in records:
            check = checks[record.where]
            why_not = ""
            if check.status not in ("mismatch", "unreadable"):
                oracle, why_not = _oracle_of(record.path, get_oracle)
                result = record.result
                key = (result.solver, result.recipe, id(oracle))
                host: SolverHost | str = why_not
                if time.monotonic() > end:
                    host = f"the {budget_s:g} s for it are over"
                elif oracle is not None:
                    if key not in hosts:
                        hosts[key] = _host(result, trust, oracle, timeout_s, stack)
                    host = hosts[key]
                if not isinstance(host, str):
                    task = read_task(result, record.path.parent)
                    attempt = host.solve(task, result.seed, None, None)
                    if attempt.timed_out:
                        hosts[key] = f"{result.solver} takes longer than {timeout_s:g} s: --timeout gives it more"
                        host = str(hosts[key])
                    else:
                        check = _compare(result, check, attempt)
                why_not = host if isinstance(host, str) else ""
            yield check, why_not


def _host(
    result: Result, trust: Collection[str], oracle: CostModel, timeout_s: float, stack: ExitStack
) -> SolverHost | str:
    """Return where the solver of a record works, which the stack ends, or why it cannot be made."""
    name = result.made_from or result.solver
    if ":" in name and name not in trust:
        return f"the solver is '{name}': to import it, pass --trust {name}"
    try:
        (spec,) = check_solvers([SolverSpec(name, result.solver_settings, result.solver)])
        host = host_solver(spec, oracle, timeout_s=timeout_s, max_bytes=MAX_BYTES)
        stack.callback(host.close)
        host.start()
        host.wait_until_made()
    except (InputError, MissingDependencyError) as error:
        return f"the solver cannot be made here: {error}"
    return host


def _oracle_of(file: Path, get_oracle: GetCost) -> tuple[CostModel | None, str]:
    """Return the oracle of a file's run, or why solving again would not show anything."""
    info = RunInfo.beside(file.parent) if file.name == RECORDS else None
    if info is None:
        return None, f"no {RUN_INFO} of {file} names the oracle"
    if info.time_limit_s is not None:
        return None, "with a time limit a solver need not make the same plan"
    oracle, why_not = get_oracle(info.oracle, info.oracle_settings)
    if oracle is None:
        return None, why_not
    if not oracle.deterministic:
        return None, f"the oracle '{info.oracle}' is measured: a solver need not make the same plan"
    return oracle, ""


def _compare(result: Result, check: RecordCheck, attempt: Attempt) -> RecordCheck:
    """Return the check of a record with what solving again showed."""
    failure = result.status if result.status in ("infeasible", "error") else None
    before = (failure, result.plan.digest if result.plan is not None else None)
    now = (attempt.failure, attempt.plan.digest if attempt.plan is not None else None)
    other_weights = ""
    if result.weights_digest and result.weights_digest != attempt.answer.weights_digest:
        at_hand = attempt.answer.weights_digest[:12] or "none"
        other_weights = f"the weights of the record are {result.weights_digest[:12]}, those at hand are {at_hand}"
    if before != now:
        if attempt.plan is None:
            outcome = f"no plan, {attempt.reason}"
        else:
            outcome = "another plan" if attempt.failure is None else f"an infeasible plan, {attempt.reason}"
        version = result.versions.get("shardgym", "?")
        commit = result.commit or "unknown"
        reason = f"solved again: {outcome}, not the stored one (of shardgym {version}, commit {commit:.12})"
        reason += f"; {other_weights}" if other_weights else ""
        if attempt.facts.differs_from(result.source_digest):
            reason += "; the source of the solver has changed since"
        return dataclasses.replace(check, status="mismatch", reason=reason)
    if other_weights:
        return dataclasses.replace(check, status="mismatch", reason=f"solved again: the same plan, but {other_weights}")
    if check.status == "failure" and result.plan is None:
        return dataclasses.replace(check, status="ok", reason=f"solved again: fails as recorded, {check.reason}")
    return dataclasses.replace(check, reason=f"{check.reason}; solved again: the same plan")
