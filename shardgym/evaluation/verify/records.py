"""Stored records as verify reads them: damage is reported, not raised, and every record is compared with its run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardgym.costs.base import PlanCost
from shardgym.errors import InputError
from shardgym.evaluation.result import RECORDS, RUN_INFO, Result, RunInfo
from shardgym.evaluation.solver_spec import check_label
from shardgym.evaluation.verify.report import CheckStatus, RecordCheck, format_tasks
from shardgym.files import read_lines
from shardgym.plan import ShardingPlan, plan_problems
from shardgym.task import ShardingTask


@dataclass(frozen=True)
class StoredRecord:
    """A readable record and where it was found."""

    path: Path
    where: str
    result: Result

    @property
    def plan(self) -> ShardingPlan:
        """The plan of a record that has one."""
        assert self.result.plan is not None
        return self.result.plan

    @property
    def cost(self) -> PlanCost:
        """The cost of a record that has one."""
        assert self.result.cost is not None
        return self.result.cost

    def checked(self, status: CheckStatus, reason: str, relative: float | None = None) -> RecordCheck:
        """Return what became of this record; one that claims no cost and was not checked is a failure."""
        result = self.result
        if status == "skipped" and result.status != "ok":
            status = "failure"
        subject = f"{result.suite}/{result.task_index} {result.solver} seed {result.seed}"
        return RecordCheck(
            self.where, subject, status, reason, result.solver, result.task_index, relative, result.status == "ok"
        )


def read_file(path: Path) -> tuple[list[StoredRecord | RecordCheck], list[str]]:
    """Read a records file and compare its records with each other and with the `run.json` beside it.

    Returns:
        Per line a record that is still to be scored, or what became of it already: a line that is damaged, doubled, cut
        off or not of the run. And a line of text for everything that the file lacks.

    Raises:
        InputError: the file cannot be read or none of its several lines is a record, or `run.json` is damaged.
    """
    info = RunInfo.beside(path.parent) if path.name == RECORDS else None
    rows: list[StoredRecord | RecordCheck] = []
    seen = set()
    hashes: dict[int, str] = {}
    recipes: dict[str, str] = {}
    records: list[StoredRecord] = []
    for line in read_lines(path):
        where = line.where(path)
        if not line.whole:
            rows.append(RecordCheck(where, "", "skipped", "cut off while it was written; a resumed run drops it"))
            continue
        try:
            result = Result.from_json(line.text, source="record")
        except InputError as error:
            rows.append(RecordCheck(where, "", "unreadable", str(error)))
            continue
        record = StoredRecord(path, where, result)
        if result.key in seen:
            rows.append(record.checked("mismatch", "the second record of this in the file"))
            continue
        seen.add(result.key)
        records.append(record)
        first_hash = hashes.setdefault(result.task_index, result.task_hash)
        first_recipe = recipes.setdefault(result.solver, result.recipe)
        problem = _problem_of_run(info, result) or _problem_of_first(result, first_hash, first_recipe)
        rows.append(record if problem is None else record.checked("mismatch", problem))
    unreadable = [row for row in rows if isinstance(row, RecordCheck) and row.status == "unreadable"]
    if len(unreadable) == len(rows) > 1:
        raise InputError(
            f"{path} is no file of records, its first line is not one: {unreadable[0].reason}; "
            f"expected {RECORDS} of a run, or the run's folder"
        )
    gaps = (
        [f"no {RUN_INFO} of {path}: which records it should hold is not known"]
        if info is None
        else _missing_records(path, info, records)
    )
    unsettled = [row for row in rows if isinstance(row, StoredRecord)]
    return rows, gaps + _mixed_sessions(path, unsettled)


def _problem_of_run(info: RunInfo | None, result: Result) -> str | None:
    """Return what of a record its run does not have; None if the run has it, or is not known."""
    if info is None:
        return None
    try:
        info.check(result, "the line")
    except InputError as error:
        return f"not of the run in {RUN_INFO}: {str(error).removesuffix(': give another folder')}"
    if result.solver not in info.solvers:
        return f"{RUN_INFO} has no solver '{result.solver}', only {', '.join(info.solvers)}"
    if result.seed not in info.seeds:
        return f"{RUN_INFO} has no seed {result.seed}, only {', '.join(map(str, info.seeds))}"
    if result.task_index >= info.num_tasks:
        return f"{RUN_INFO} has {info.num_tasks} tasks, the record is about task {result.task_index}"
    return None


def _problem_of_first(result: Result, first_hash: str, first_recipe: str) -> str | None:
    """Return how a record differs from the file's first of its task or solver, or why no run calls its solver so."""
    if result.task_hash != first_hash:
        return (
            f"task {result.task_hash[:12]}, the file's first record of task {result.task_index} has {first_hash[:12]}"
        )
    if result.recipe != first_recipe:
        return f"solver settings {result.recipe}, the solver's first record has {first_recipe}"
    try:
        if result.made_from is not None:
            check_label(result.solver, result.made_from)
    except InputError as error:
        return str(error)
    return None


def _missing_records(path: Path, info: RunInfo, records: Sequence[StoredRecord]) -> list[str]:
    """Return one line that names what the run promises and the file lacks; none when it lacks nothing."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for result in (record.result for record in records):
        found[result.solver, result.seed].add(result.task_index)
    named = []
    count = 0
    for solver in info.solvers:
        for seed in info.seeds:
            missing = set(range(info.num_tasks)) - found[solver, seed]
            if missing:
                count += len(missing)
                with_seed = f" with seed {seed}" if len(info.seeds) > 1 else ""
                named.append(f"{solver}{with_seed} on {format_tasks(missing)}")
    records_text = "record" if count == 1 else "records"
    return [f"{count} {records_text} missing in {path}: {'; '.join(named)}"] if named else []


def _mixed_sessions(path: Path, records: Iterable[StoredRecord]) -> list[str]:
    """Return one line that names the tasks whose times are of several sessions; a run measures them together."""
    sessions: dict[int, set[str]] = defaultdict(set)
    for result in (record.result for record in records):
        if result.status == "ok" and result.cost is not None and result.cost.session:
            sessions[result.task_index].add(result.cost.session)
    mixed = [index for index, found in sessions.items() if len(found) > 1]
    if not mixed:
        return []
    return [
        f"times of several sessions on {format_tasks(mixed)} of {path}: a run measures all plans of a task together"
    ]


def check_without_judge(record: StoredRecord, task: ShardingTask) -> RecordCheck | None:
    """Check what needs no fresh cost; None when one is needed."""
    result = record.result
    if result.plan is None:
        return record.checked("skipped", f"{result.status}: {result.reason}")
    if result.status == "error":
        return record.checked("mismatch", "recorded as an error, which has no plan, and it has one")
    problems = plan_problems(task, result.plan.shards)
    if result.status == "infeasible":
        if problems:
            return record.checked("ok", f"infeasible as recorded: {problems[0]}")
        return record.checked("mismatch", "recorded as infeasible, and the plan is feasible")
    if problems:
        return record.checked("mismatch", f"the plan is infeasible: {problems[0]}")
    if result.cost is None:
        return None
    num_devices = result.cost.per_device.shape[0]
    if num_devices != task.num_devices:
        return record.checked("mismatch", f"cost of {num_devices} devices, the task has {task.num_devices}")
    if result.cost.hardware != result.hardware:
        return record.checked("mismatch", f"cost is of {result.cost.hardware}, the record says {result.hardware}")
    return None
