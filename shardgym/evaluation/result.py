"""Results: the record of one solver on one task, what the results of a folder share, and the files of both.

A folder holds `records.jsonl` with one line per result and `run.json`. Of boards that are committed, the records are
packed: `records.jsonl.xz`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.costs.plan_cost import CONFIG as COST_CONFIG
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, import_extra
from shardgym.files import PACKED, Line, read_lines, write_whole
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Digest, Label, Record, Whole, canonical_json
from shardgym.tasks.suites import shipped_suite

if TYPE_CHECKING:
    import pandas as pd

_logger = logging.getLogger(__name__)

RECORDS = "records.jsonl"
PACKED_RECORDS = RECORDS + PACKED
RUN_INFO = "run.json"

#: `ok`: a plan with a finite cost. `infeasible`: the solver found no feasible plan, or returned an infeasible one.
#: `error`: the solver raised. `unmeasured`: the plan is feasible and the judge could not score it.
Status = Literal["ok", "infeasible", "error", "unmeasured"]

#: Identifies a result within its folder: task index, solver, seed.
Key = tuple[int, str, int]


def recipe(made_from: str | None, settings: Mapping[str, Any]) -> str:
    """Return what a solver was made of as text: its settings as JSON, after the name that a label stands for."""
    text = canonical_json(dict(settings))
    return text if made_from is None else f"{made_from} {text}"


@dataclass(frozen=True, eq=False, config=COST_CONFIG)
class Result(Record):
    """One solver, one task, one seed, one judge: enough to score the plan again.

    Attributes:
        suite: name of the suite.
        task_index: position of the task in the suite.
        task_hash: `digest` of the task.
        solver: name of the solver, or its label in this run.
        made_from: name behind a label; None if `solver` is the name.
        solver_settings: keyword arguments of its class.
        resolved_settings: all arguments of its class, defaults included; None if unknown.
        source_digest: SHA-256 of the file of its class; "" if there is none.
        weights_digest: SHA-256 of the weights that a learned solver solved with; "" for others.
        training_time_s: seconds that training these weights took, not part of `solve_time_s`; None if unknown.
        seed: seed of the solver.
        judge: name of the cost model that scored the plan.
        oracle: name of the cost model that the solver could query.
        hardware: the judge's hardware tag.
        status: see `Status`.
        reason: one line that says why status is not "ok".
        plan: the plan; None if the solver returned none.
        cost: cost of the plan by the judge; None without a plan.
        solve_time_s: seconds that the solver took.
        cpu_time_s: processor seconds of that, over all threads and the processes it waited for; None if unknown.
        time_limit_s: time limit of the solver; None if there was none.
        judge_settings: keyword arguments of the judge.
        started: UTC, ISO 8601.
        versions: versions of shardgym, Python, torch, fbgemm and the like.
        commit: commit of the checkout, with "+" when its packages were modified; "" when not run from one.
    """

    suite: Label
    task_index: Annotated[Whole, Field(ge=0)]
    task_hash: Digest
    solver: Label
    seed: Annotated[Whole, Field(ge=0)]
    judge: Label
    oracle: Label
    hardware: Label
    status: Status
    solve_time_s: Annotated[float, Field(ge=0)]
    started: Label
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    reason: str | None = None
    plan: ShardingPlan | None = None
    cost: PlanCost | None = None
    made_from: Label | None = None
    solver_settings: dict[str, Any] = Field(default_factory=dict)
    resolved_settings: dict[str, Any] | None = None
    source_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    weights_digest: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    training_time_s: Annotated[float, Field(ge=0)] | None = None
    cpu_time_s: Annotated[float, Field(ge=0)] | None = None
    judge_settings: dict[str, Any] = Field(default_factory=dict)
    versions: dict[Label, Label] = Field(default_factory=dict)
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}\+?$")] = ""
    schema: Literal["shardgym.result/1"] = "shardgym.result/1"

    @model_validator(mode="after")
    def _consistent(self) -> Result:
        scored = self.cost is not None and self.cost.feasible
        if (self.status == "ok") != (scored and self.plan is not None):
            raise ValueError(f"{self.subject}: status '{self.status}' does not agree with the plan and its cost")
        if (self.status == "ok") == (self.reason is not None):
            raise ValueError(f"{self.subject}: a result has a reason if, and only if, its status is not 'ok'")
        if self.plan is not None and self.plan.task_hash != self.task_hash:
            raise ValueError(f"{self.subject}: the plan is for another task than the record")
        return self

    @property
    def key(self) -> Key:
        """What identifies the result within its folder."""
        return (self.task_index, self.solver, self.seed)

    @property
    def subject(self) -> str:
        """What the result is about, for messages: suite, task, solver and seed."""
        return f"{self.suite}/{self.task_index} {self.solver} seed {self.seed}"

    @property
    def recipe(self) -> str:
        """What the solver was made of: its name, unless `solver` is it, and its settings."""
        return recipe(self.made_from, self.solver_settings)

    @property
    def total_ms(self) -> float:
        """The judge's cost; infinite when status is not "ok"."""
        return self.cost.total_ms if self.cost is not None else float("inf")


#: Fields of `Result` that `read_results` leaves out.
_NOT_IN_TABLES = ("plan", "cost", "solver_settings", "resolved_settings", "judge_settings", "versions", "schema")

#: Fields of `RunInfo` that grow with every run in the same folder; the others must stay as they are.
_GROWING = ("num_tasks", "solvers", "seeds")


@dataclass(frozen=True, config=CONFIG)
class RunInfo(Record):
    """What the results in a folder are about: `run.json` beside them, which keeps other results out."""

    suite: Label  #: name of the suite
    judge: Label  #: name of the cost model that scores plans
    judge_version: Label  #: its version
    judge_settings: dict[str, Any]  #: keyword arguments it was made with
    hardware: Label  #: its hardware tag
    oracle: Label  #: name of the cost model that solvers query
    oracle_settings: dict[str, Any]  #: keyword arguments it was made with
    time_limit_s: float | None  #: given to solvers; None when there was none
    num_tasks: Annotated[Whole, Field(ge=0)]  #: how many of the suite's tasks were asked for, counted from its first
    solvers: tuple[Label, ...]  #: names or labels of the solvers that were asked for
    seeds: tuple[Whole, ...]  #: seeds that were asked for
    schema: Literal["shardgym.run/1"] = "shardgym.run/1"

    @classmethod
    def beside(cls, folder: Path) -> Self | None:
        """Read the file of a folder; None when it has none."""
        path = folder / RUN_INFO
        return cls.load(path) if path.exists() or path.is_symlink() else None

    @classmethod
    def of(cls, records: Path) -> Self:
        """Read the `run.json` beside a records file; raises `InputError` if there is none, or no records."""
        if records.name not in (RECORDS, PACKED_RECORDS):
            raise InputError(f"{records} is no records file: expected {RECORDS}, or the folder of a run")
        if not records.stat().st_size:
            raise InputError(f"{records} is empty: expected a record on each line")
        run = cls.beside(records.parent)
        if run is None:
            raise InputError(f"{records} has no {RUN_INFO} beside it: expected the folder of a run")
        suite = shipped_suite(run.suite)
        if suite is not None and run.num_tasks > len(suite):
            raise InputError(f"{records.parent / RUN_INFO}: num_tasks is {run.num_tasks}, the suite has {len(suite)}")
        return run

    def write(self, folder: Path) -> None:
        """Write the file of a folder; raises `InputError` when that fails."""
        write_whole(folder / RUN_INFO, self.to_json(indent=2) + "\n")

    def join(self, folder: Path) -> RunInfo:
        """Return this run together with those that the folder already holds.

        Raises:
            InputError: the folder is about something else; the first field that differs is named.
        """
        old = RunInfo.beside(folder)
        if old is None:
            return self
        for field in dataclasses.fields(self):
            was = getattr(old, field.name)
            now = getattr(self, field.name)
            if field.name not in _GROWING and was != now:
                raise InputError(
                    f"{folder} holds records of {field.name} {was!r}, but this run has {now!r}: "
                    "give another folder, or --resume all to start afresh"
                )
        return dataclasses.replace(
            self,
            num_tasks=max(old.num_tasks, self.num_tasks),
            solvers=tuple(dict.fromkeys(old.solvers + self.solvers)),
            seeds=tuple(sorted({*old.seeds, *self.seeds})),
        )

    def check(self, result: Result) -> None:
        """Check that a stored result is of this run.

        Raises:
            InputError: it is of another suite, judge, oracle or time limit, or of a task, solver or seed that the run
                does not have, or its cost is of another judge, judge version or hardware.
        """
        fields = ("suite", "judge", "hardware", "oracle", "judge_settings", "time_limit_s")
        pairs = {name: (getattr(result, name), getattr(self, name)) for name in fields}
        if result.cost is not None:
            pairs["judge_version"] = result.cost.version, self.judge_version
            pairs["cost.hardware"] = result.cost.hardware, self.hardware
            if "ids_hidden" in self.judge_settings:
                pairs["cost.ids_hidden"] = result.cost.ids_hidden, self.judge_settings["ids_hidden"]
            if ":" not in self.judge:  # classes that are not registered have a name beside `module:Class`
                pairs["cost.cost"] = result.cost.cost, self.judge
        for name, (was, now) in pairs.items():
            if was != now:
                raise InputError(f"{result.subject} records {name} {was!r}, but the run has {now!r}")
        for name, known in (("task_index", range(self.num_tasks)), ("solver", self.solvers), ("seed", self.seeds)):
            if getattr(result, name) not in known:
                raise InputError(f"{result.subject}: the run has no {name} {getattr(result, name)!r}")
        suite = shipped_suite(self.suite)
        digests = None if suite is None else suite.digests
        if digests is not None and digests[result.task_index] != result.task_hash:
            raise InputError(f"{result.subject} is not about task {result.task_index} of '{self.suite}', by its digest")


def records_file(folder: Path) -> Path | None:
    """Return the records of a folder, packed or not; None when it has none. Raises `InputError` when it has both."""
    found = [folder / name for name in (RECORDS, PACKED_RECORDS) if os.path.lexists(folder / name)]
    if len(found) > 1:
        raise InputError(f"{folder} holds both {RECORDS} and {PACKED_RECORDS}: remove one of them")
    return found[0] if found else None


def record_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return records files: files as given, and the records of every folder below one.

    Raises:
        InputError: a path does not exist, a folder holds no records, or holds them twice.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        found = [path]
        if path.is_dir():
            names = (RECORDS, PACKED_RECORDS)
            found = sorted(file for file in path.rglob("*") if file.name in names and file == records_file(file.parent))
        if not path.exists():
            raise InputError(f"{path} does not exist: expected a records file, or a folder with one")
        if not found:
            raise InputError(f"{path} holds no {RECORDS}: expected the folder of a run")
        files += found
    return list(dict.fromkeys(file.resolve() for file in files)) if len(files) > 1 else files


def checked_lines(file: Path, run: RunInfo | None = None) -> Iterator[tuple[Line, Result | str]]:
    """Yield every line of a records file with its record or, as one line, what is wrong with it.

    It is cut off, damaged, not of the run, or repeats or contradicts an earlier one of its key, task or solver.

    Raises:
        InputError: the file cannot be read, or no line of it is a JSON object.
    """
    lines = read_lines(file)
    if lines and not any(line.text.startswith(b"{") for line in lines):
        raise InputError(f"{file} is no records file: expected a JSON object on each line")
    seen: dict[Key, int] = {}
    hashes: dict[int, str] = {}
    recipes: dict[str, str] = {}
    for line in lines:
        try:
            if not line.whole:
                raise InputError("the last record is cut off: run the same command to make it again")
            result = Result.from_json(line.text, source="record")
            if run is not None:
                run.check(result)
            first = seen.setdefault(result.key, line.number)
            if first != line.number:
                raise InputError(f"{result.subject} already has a record on line {first}")
            if hashes.setdefault(result.task_index, result.task_hash) != result.task_hash:
                raise InputError(f"{result.subject} is about another task than earlier records of that index")
            if recipes.setdefault(result.solver, result.recipe) != result.recipe:
                raise InputError(f"{result.subject} has other settings than earlier records of that solver")
        except InputError as error:
            yield line, str(error)
        else:
            yield line, result


def read_records(path: str | Path, run: RunInfo | None = None) -> list[Result]:
    """Read the records of a file, all of `run` if it is given; a cut-off last line is left out, with a warning.

    Raises:
        InputError: something is wrong with a line, see `checked_lines`; file and line are named.
    """
    results: list[Result] = []
    for line, found in checked_lines(Path(path), run):
        if isinstance(found, Result):
            results.append(found)
            continue
        problem = f"{line.where(Path(path))}: {found}"
        if line.whole:
            raise InputError(f"{problem}; remove the line, or restore the file or {RUN_INFO}; see 'shardgym verify'")
        _logger.warning(problem)
    return results


def read_results(path: str | Path) -> pd.DataFrame:
    """Read results into a pandas DataFrame, one row per record, in the order of files and lines.

    Args:
        path: a records file, or a folder that is searched for such files.

    Returns:
        The fields of `Result` without plan, cost and settings; `total_ms`, `noise` and `judge_version` of the cost; and
        the `file`. A missing number is NaN.

    Raises:
        InputError: there are no records, or a line is damaged; file and line are named.
        MissingDependencyError: pandas is not installed.
    """
    pandas = import_extra("pandas", "reading results into a table")
    names = [field.name for field in dataclasses.fields(Result) if field.name not in _NOT_IN_TABLES]
    rows = []
    for file in record_files([path]):
        for result in read_records(file):
            cost = result.cost if result.status == "ok" else None
            row = {name: getattr(result, name) for name in names}
            of_cost = (cost.total_ms, cost.noise, cost.version) if cost is not None else (None, None, None)
            rows.append(row | dict(zip(("total_ms", "noise", "judge_version"), of_cost, strict=True), file=str(file)))
    if not rows:
        raise InputError(f"{path}: no records yet; expected at least one whole line")
    frame: pd.DataFrame = pandas.DataFrame(rows)
    return frame.astype(dict.fromkeys(("total_ms", "noise", "cpu_time_s", "training_time_s", "time_limit_s"), float))
