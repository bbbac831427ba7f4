"""Solving the tasks of records again: whether a solver makes the plan that stands under its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from shardgym.costs.base import CostModel
from shardgym.costs.judge_guard import judges_closed
from shardgym.errors import InputError, MissingDependencyError
from shardgym.evaluation.attempt import Attempt, attempt
from shardgym.evaluation.entrant import Entrant, SolverSpec, make_entrants
from shardgym.evaluation.run_info import RUN_INFO, RunInfo
from shardgym.evaluation.store import RECORDS
from shardgym.evaluation.tasks import task_of
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.judges import Judges
from shardgym.evaluation.verify.stored import Stored

#: Statuses of records that are not sound enough to be solved again.
_UNSOUND = ("mismatch", "unreadable")


class SolveAgain:
    """Solves with the oracle that `run.json` names, as the run did, and compares plans.

    Args:
        trust: solvers and oracles of the form `module:Class` that may be imported.

    Attributes:
        gaps: one line for every reason why records could not be solved again.
    """

    def __init__(self, trust: Collection[str] = ()) -> None:
        self._trust = frozenset(trust)
        self._entrants: dict[tuple[str, str], Entrant | str] = {}
        self._not: dict[str, int] = {}

    @property
    def gaps(self) -> list[str]:
        """What was not solved again, and why."""
        return [f"{count} not solved again: {why}" for why, count in self._not.items()]

    def check(self, stored: Sequence[Stored], rows: Mapping[str, Checked], tell: Callable[[], object]) -> list[Checked]:
        """Return new rows for records of any files, in order.

        Args:
            stored: the records.
            rows: what is known of them, by where they are.
            tell: called after every record.
        """
        found = []
        with Judges(self._trust, "oracle") as oracles, judges_closed():
            for record in stored:
                found.append(self._row(record, rows[record.where], oracles))
                tell()
        return found

    def _row(self, stored: Stored, row: Checked, oracles: Judges) -> Checked:
        if row.status in _UNSOUND:
            return row
        oracle, why_not = _oracle_of(stored.path, oracles)
        entrant = self._entrant(stored)
        if oracle is None or isinstance(entrant, str):
            why = why_not if oracle is None else str(entrant)
            self._not[why] = self._not.get(why, 0) + 1
            return row
        task = task_of(stored.result, stored.path.parent)
        return _compared(stored, row, attempt(entrant, task, oracle, stored.result.seed, None, lambda *_: None))

    def _entrant(self, stored: Stored) -> Entrant | str:
        """Return the solver of a record, made once, or why it cannot be made."""
        result = stored.result
        key = (result.solver, result.recipe)
        if key not in self._entrants:
            name = result.made_from or result.solver
            self._entrants[key] = self._made(SolverSpec(name, result.solver_settings, result.solver))
        return self._entrants[key]

    def _made(self, spec: SolverSpec) -> Entrant | str:
        if ":" in spec.name and spec.name not in self._trust:
            return f"the solver is '{spec.name}': to import it, pass --trust {spec.name}"
        try:
            return make_entrants([spec])[0]
        except (InputError, MissingDependencyError) as error:
            return f"the solver cannot be made here: {error}"


def _oracle_of(file: Path, oracles: Judges) -> tuple[CostModel | None, str]:
    """Return the oracle of a file's run, or why solving again would not show anything."""
    info = RunInfo.beside(file.parent) if file.name == RECORDS else None
    if info is None:
        return None, f"no {RUN_INFO} of {file} names the oracle"
    if info.time_limit_s is not None:
        return None, "with a time limit a solver need not make the same plan"
    oracle, why_not = oracles.get(info.oracle, info.oracle_settings)
    if oracle is None:
        return None, why_not
    if not oracle.deterministic:
        return None, f"the oracle '{info.oracle}' is measured: a solver need not make the same plan"
    return oracle, ""


def _compared(stored: Stored, row: Checked, tried: Attempt) -> Checked:
    result = stored.result
    failure = result.status if result.status in ("infeasible", "error") else None
    before = (failure, result.plan.digest if result.plan is not None else None)
    now = (tried.failure, tried.plan.digest if tried.plan is not None else None)
    if before != now:
        made = result.versions.get("shardgym", "?"), result.commit or "unknown"
        reason = f"solved again: {_outcome(tried)}, not the stored one (of shardgym {made[0]}, commit {made[1]:.12})"
        return dataclasses.replace(row, status="mismatch", reason=reason)
    if row.status == "failure" and result.plan is None:
        return dataclasses.replace(row, status="ok", reason=f"solved again: fails as recorded, {row.reason}")
    return dataclasses.replace(row, reason=f"{row.reason}; solved again: the same plan")


def _outcome(tried: Attempt) -> str:
    if tried.plan is None:
        return f"no plan, {tried.reason}"
    return "another plan" if tried.failure is None else f"an infeasible plan, {tried.reason}"
