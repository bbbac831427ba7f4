"""Stored records as verify reads them, what became of each, and the report on all.

Damage is reported, not raised, and every record is compared with its run.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, format_ranges
from shardgym.evaluation.result import RECORDS, RUN_INFO, Result, RunInfo
from shardgym.evaluation.solver_spec import check_label
from shardgym.evaluation.verify.agreement import COST_SHARE
from shardgym.files import read_lines
from shardgym.plans.feasibility import plan_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: `ok`: agrees with a fresh score. `mismatch`: does not, or is not of the run in `run.json`. `skipped`: claims a cost
#: that cannot be scored here. `unreadable`: the line is damaged or its task is not at hand. `failure`: claims no cost
#: and holds nothing that shows whether it failed.
CheckStatus = Literal["ok", "mismatch", "skipped", "unreadable", "failure"]

MARKS: dict[CheckStatus, str] = {"ok": "✅", "mismatch": "❌", "skipped": "⏭", "unreadable": "❌", "failure": "⏭"}


@dataclass(frozen=True)
class RecordCheck:
    """One record and what became of it.

    Attributes:
        where: file and line.
        subject: suite, task, solver and seed; "" when the line is damaged.
        status: see `CheckStatus`.
        reason: why it is not ok; for one that is, the stored and the fresh time.
        solver: name of the solver; "" when the line is damaged.
        task_index: position of the task in its suite; None when the line is damaged.
        claims_cost: whether the record claims a cost, which an "ok" of it then confirms.
        solved: what solving again came to: the same plan, one with other numbers of equal devices, or another one; None
            where it was not solved again, or is a mismatch.
        solved_ratio: cost of the plan that solving again made over that of the stored one.
    """

    where: str
    subject: str
    status: CheckStatus
    reason: str
    solver: str = ""
    task_index: int | None = None
    claims_cost: bool = False
    solved: Literal["same", "renamed", "other"] | None = None
    solved_ratio: float = 1.0

    @property
    def file(self) -> str:
        """The file that the record is in."""
        return self.where.rpartition(":")[0]

    def line(self, ascii_only: bool = False) -> str:
        """Return the record's line of the printed report."""
        mark = "" if ascii_only else f"{MARKS[self.status]} "
        return f"{mark}{self.status:<10} {self.where}  {self.subject}: {self.reason}"


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

    def checked(self, status: CheckStatus, reason: str) -> RecordCheck:
        """Return what became of this record; one that claims no cost and was not checked is a failure."""
        result = self.result
        if status == "skipped" and result.status != "ok":
            status = "failure"
        subject = f"{result.suite}/{result.task_index} {result.solver} seed {result.seed}"
        return RecordCheck(self.where, subject, status, reason, result.solver, result.task_index, result.status == "ok")


def read_file(path: Path) -> tuple[list[StoredRecord | RecordCheck], list[str]]:
    """Read a records file and compare its records with each other and with the `run.json` beside it.

    Returns:
        Per line a record that is still to be scored, or what became of it already: a line that is damaged, doubled, cut
        off or not of the run. And a line of text for everything that the file lacks.

    Raises:
        InputError: the file cannot be read or none of its several lines is a record, or `run.json` is damaged.
    """
    info = RunInfo.of(path)
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
    return rows, gaps


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


def check_without_judge(record: StoredRecord, task: ShardingTask) -> RecordCheck | None:
    """Check what needs no fresh cost; None when one is needed."""
    result = record.result
    if result.plan is None:
        return record.checked("skipped", f"{result.status}: {result.reason}")
    if result.status == "error":
        return record.checked("mismatch", "recorded as an error, which has no plan, and it has one")
    problems = plan_problems(task, result.plan.shards, result.plan.group_size)
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


class MeasuredBoard(NamedTuple):
    """What measuring plans of a file again showed, besides what is said of each record.

    Attributes:
        file: the records.
        num_plans: records that were measured again.
        factor: of the board, see `board_factor`.
        problems: one sentence for every solver that is off on average.
    """

    file: Path
    num_plans: int
    factor: float
    problems: Sequence[str]


@dataclass(frozen=True)
class VerifyReport:
    """All records that were looked at.

    Attributes:
        rows: one per record, in the order of files and lines.
        gaps: one line for every file that lacks records of its run or lies beside no `run.json`.
        unused_trust: names that were to be trusted and that no record names.
        unfinished: one line for everything that was left when the time was over.
        boards: files of which plans were measured again.
    """

    rows: Sequence[RecordCheck]
    gaps: Sequence[str] = ()
    unused_trust: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    boards: Sequence[MeasuredBoard] = ()

    def count(self, status: CheckStatus) -> int:
        """Return how many records have this status."""
        return Counter(row.status for row in self.rows)[status]

    @property
    def unverified_files(self) -> list[str]:
        """Files of whose records none could be verified, or none of those that claim a cost."""
        claiming = {row.file for row in self.rows if row.claims_cost}
        verified = {row.file for row in self.rows if row.status == "ok" and row.claims_cost == (row.file in claiming)}
        return [file for file in dict.fromkeys(row.file for row in self.rows) if file not in verified]

    @property
    def solvers_off(self) -> list[str]:
        """One line for every solver whose measured costs are off the factor of its board on average."""
        return [f"{problem}, in {board.file}" for board in self.boards for problem in board.problems]

    @property
    def measured_again(self) -> list[str]:
        """One line for every file of which plans were measured again."""
        return [
            f"measured again, {board.file}: {board.num_plans} plans take {board.factor:.3f} times as long (median)"
            for board in self.boards
        ]

    @cached_property
    def solved_again(self) -> list[str]:
        """One line per file on what solving its tasks again came to; none for files of which nothing was."""
        return [line for line, _ in self._solved_again]

    @property
    def costlier(self) -> list[str]:
        """One line per file whose plans, made again, cost others than the stored ones on average."""
        return [f"plans made again cost {mean:+.2%} on average: {line}" for line, mean in self._solved_again
                if abs(mean) > COST_SHARE]  # fmt: skip

    @cached_property
    def _solved_again(self) -> list[tuple[str, float]]:
        """Line and mean change of cost, as a share, of every file of which something was solved again."""
        found = []
        for file in dict.fromkeys(row.file for row in self.rows):
            again = [row for row in self.rows if row.file == file and row.solved is not None]
            if not again:
                continue
            mean = math.exp(statistics.fmean(math.log(row.solved_ratio) for row in again)) - 1
            kinds = Counter(row.solved for row in again)
            told = [f"{kinds['same']} of {len(again)} plans are the same"]
            told += [f"{kinds['renamed']} but for the order of equal devices"] if kinds["renamed"] else []
            others = [row.solved_ratio - 1 for row in again if row.solved == "other"]
            if others:
                spread = f"{min(others):+.2%} to {max(others):+.2%}, {mean:+.3%} on average over all"
                told.append(f"{len(others)} are others, whose costs differ by {spread}")
            found.append((f"solved again, {file}: {', '.join(told)}", mean))
        return found

    @property
    def ok(self) -> bool:
        """Whether of every file at least one record was verified, in time, and nothing disagrees or is damaged."""
        return self.count("ok") > 0 and not self._disagrees and not self.unfinished

    @property
    def _disagrees(self) -> bool:
        counts = self.count("mismatch"), self.count("unreadable")
        return bool(sum(counts) or self.unverified_files or self.solvers_off or self.costlier)

    @property
    def verdict(self) -> str:
        """`partly verified` when records could not be checked or are missing."""
        wrong = self.count("mismatch") or self.count("unreadable") or self.solvers_off or self.costlier
        if self.unfinished and not wrong:
            return "NOT FINISHED, nothing disagreed so far"
        if not self.ok:
            return "NOT VERIFIED"
        partly = self.count("skipped") or self.count("failure") or self.gaps
        return "partly verified" if partly else "verified"

    def footer(self) -> str:
        """Return the verdict and the counts, and a line for everything that concerns more than one record."""
        counts = [f"{self.count(status)} {status}" for status in MARKS if status != "failure"]
        if self.count("failure"):
            counts.append(f"{self.count('failure')} failed (not checked)")
        first = f"{self.verdict}: {len(self.rows)} records, {', '.join(counts)}"
        nothing = [f"nothing verified in {file}{self._why_skipped(file)}" for file in self.unverified_files]
        lines = [first, *self.unfinished, *self.solvers_off, *self.costlier, *nothing]
        return "\n".join([*lines, *self.measured_again, *self.solved_again, *self._failure_lines(), *self.gaps])

    def _why_skipped(self, file: str) -> str:
        """Return the most frequent reason why records of a file were skipped; empty where none were."""
        reasons = Counter(row.reason for row in self.rows if row.file == file and row.status == "skipped")
        return f": {reasons.most_common(1)[0][0]}" if reasons else ""

    def _failure_lines(self) -> list[str]:
        """Return a line per file with the tasks of every solver's unchecked failures."""
        tasks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            if row.status == "failure" and row.task_index is not None:
                tasks[row.file][row.solver].append(row.task_index)
        lines = []
        for file, solvers in tasks.items():
            named = [f"{solver} on {format_tasks(indices)}" for solver, indices in solvers.items()]
            lines.append(f"failures, not checked, in {file}: {'; '.join(named)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready."""
        rows = [{"where": r.where, "subject": r.subject, "status": r.status, "reason": r.reason} for r in self.rows]
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "counts": {status: self.count(status) for status in MARKS},
            "unverified_files": self.unverified_files,
            "solvers_off": self.solvers_off,
            "measured_again": self.measured_again,
            "solved_again": self.solved_again,
            "costlier": self.costlier,
            "gaps": list(self.gaps),
            "unused_trust": list(self.unused_trust),
            "unfinished": list(self.unfinished),
            "records": rows,
        }


def format_tasks(indices: Iterable[int]) -> str:
    """Return for example "tasks 0-3, 7" or "task 7"; an index that is given twice counts once."""
    text = format_ranges(indices)
    return f"{'task' if text.isdigit() else 'tasks'} {text}"
