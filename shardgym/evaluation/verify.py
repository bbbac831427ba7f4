"""verify: every stored plan is checked against its task and scored again."""

import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.errors import InputError, MeasurementError, MissingDependencyError
from shardgym.evaluation.result import Result, RunInfo, checked_lines, record_files
from shardgym.evaluation.store import read_task
from shardgym.plans.feasibility import plan_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.progress import progress_bar
from shardgym.records import canonical_json

#: Of deterministic costs: other processors and libraries round the last digits differently.
EXACT = 1e-6
#: A measured plan may be off the median of its file by this share either way.
SHARE = 0.2

RULE = f"""Every stored plan must be feasible. Deterministic costs must be the same to {EXACT:g}. Measured plans are
measured again, those of a task together: at the old pace, and divided by the median of new/old over their file, times
must agree within {SHARE:.0%}. Every record must belong to the run in run.json. Runs of other hardware or of another
version of the judge are skipped. Records without a cost are failures, because there is nothing to check."""

#: `ok`: agrees with a fresh score. `mismatch`: does not, is damaged or not of its run, or its task is not at hand.
#: `skipped`: cannot be scored here. `failure`: claims no cost.
CheckStatus = Literal["ok", "mismatch", "skipped", "failure"]
STATUSES: tuple[CheckStatus, ...] = ("ok", "mismatch", "skipped", "failure")

_logger = logging.getLogger(__name__)


class RecordCheck(NamedTuple):
    """What became of one record."""

    file: Path  #: where it is
    line: int  #: of the file, from 1
    subject: str  #: suite, task, solver and seed; "" where the line is damaged or not of the run
    status: CheckStatus  #: see `CheckStatus`
    reason: str  #: why it is not ok; of one that is, the stored and the fresh time

    def __str__(self) -> str:
        return f"{self.status} {self.file}:{self.line} {f'{self.subject}: ' if self.subject else ''}{self.reason}"


class VerifyReport(NamedTuple):
    """What became of all records, in the order of files and lines."""

    rows: Sequence[RecordCheck]

    def count(self, status: CheckStatus, file: Path | None = None) -> int:
        """Return how many records have this status, of one file or of all."""
        return sum(row.status == status and file in (None, row.file) for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether something was verified and nothing disagrees."""
        return self.count("ok") > 0 and not self.count("mismatch")

    def lines(self) -> list[str]:
        """Return a line for every mismatch, one with counts and skips of every file, and the verdict."""
        found = [str(row) for row in self.rows if row.status == "mismatch"]
        for file in dict.fromkeys(row.file for row in self.rows):
            counts = ", ".join(f"{self.count(status, file)} {status}" for status in STATUSES)
            skips = Counter(row.reason for row in self.rows if row.file == file and row.status == "skipped")
            why = "; ".join(f"{reason} ({count})" for reason, count in skips.items())
            found.append(f"{file}: {counts}{f'; skipped: {why}' if why else ''}")
        verdict = f"verified: {self.count('ok')} of {len(self.rows)} records"
        if not self.ok:
            verdict = f"NOT VERIFIED: {self.count('mismatch')} of {len(self.rows)} records disagree"
        return [*found, verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready."""
        return {
            "ok": self.ok,
            "counts": {status: self.count(status) for status in STATUSES},
            "records": [row._asdict() | {"file": str(row.file)} for row in self.rows],
        }


def verify(
    paths: str | Path | Iterable[str | Path], *, costs: Collection[str] = (), progress: bool = False
) -> VerifyReport:
    """Check every stored plan against its task, and score it again with the judge of its record; see `RULE`.

    Args:
        paths: records files, or folders that are searched for them; one, or several.
        costs: judges `module:Class` that records may name. Others than these and registered ones are never imported,
            so that somebody else's records cannot make this process run code.
        progress: draw a progress bar on standard error when it is a terminal.

    Raises:
        InputError: a path cannot be read or unpacked, is empty or no records file, or has no `run.json` beside it.
    """
    runs = {file: RunInfo.of(file) for file in record_files([paths] if isinstance(paths, str | Path) else paths)}
    for name in costs:
        if ":" not in name:
            raise InputError(f"--cost {name}: expected module:Class; the judge of a run that ships needs no name")
    rows: list[RecordCheck] = []
    bar_of_records = progress_bar(shown=progress, total=0, unit="record", desc="verify")
    with ExitStack() as stack, bar_of_records as bar:
        judges = _Judges(costs, stack)
        for file, run in runs.items():
            rows += _check_file(file, run, judges.of(run), bar)
    return VerifyReport(rows)


class _Judges:
    """Makes judges, once each; a stack closes them."""

    def __init__(self, costs: Collection[str], stack: ExitStack) -> None:
        self._costs = costs
        self._stack = stack
        self._made: dict[str, CostModel | str] = {}

    def of(self, run: RunInfo) -> CostModel | str:
        """Return the judge of a run, or why it cannot score here."""
        key = canonical_json([run.judge, run.judge_settings])
        if key not in self._made:
            self._made[key] = self._make(run)
        judge = self._made[key]
        if isinstance(judge, str) or (run.judge_version, run.hardware) == (judge.version, judge.hardware):
            return judge
        return f"scored by {run.judge_version} on {run.hardware}, here is {judge.version} on {judge.hardware}"

    def _make(self, run: RunInfo) -> CostModel | str:
        if ":" in run.judge and run.judge not in self._costs:
            return f"no judge '{run.judge}': to import it, pass --cost {run.judge}"
        try:
            judge = self._stack.enter_context(make_cost(run.judge, **run.judge_settings))
        except (InputError, MissingDependencyError) as error:
            return f"no judge '{run.judge}': {error}"
        here = judge.settings()
        for name, value in run.judge_settings.items():
            if canonical_json(here.get(name, value)) != canonical_json(value):
                return f"scored with {name}={value!r}, here is {name}={here[name]!r}"
        return judge


class _Verdict(NamedTuple):
    """What becomes of the record on a line."""

    status: CheckStatus
    reason: str
    ratio: float | None = None  #: new over old ms, at one pace, of measured costs


def _check_file(file: Path, run: RunInfo, judge: CostModel | str, bar: "tqdm[Any]") -> list[RecordCheck]:
    """Check the records of a file, in the order of its lines."""
    subjects: dict[int, str] = {}
    verdicts: dict[int, _Verdict] = {}
    groups: dict[int, dict[int, Result]] = defaultdict(dict)
    lines = list(checked_lines(file, run))
    bar.total = (bar.total or 0) + len(lines)
    for line, found in lines:
        if isinstance(found, str):
            subjects[line.number] = ""
            verdicts[line.number] = _Verdict("mismatch", found)
            continue
        subjects[line.number] = found.subject
        if found.status == "ok":
            groups[found.task_index][line.number] = found
        else:
            verdicts[line.number] = _Verdict("failure", f"{found.status}: {found.reason}")
    if groups and not isinstance(judge, str) and not judge.deterministic:
        _logger.info("%s: %d measured tasks are measured again", file, len(groups))
    bar.update(len(verdicts))  # records that are not scored
    for group in groups.values():
        verdicts |= _check_task(file.parent, group, judge)
        bar.update(len(group))
    ratios = [verdict.ratio for verdict in verdicts.values() if verdict.ratio is not None]
    median = statistics.median(ratios) if ratios else 1.0
    for number, (_, reason, ratio) in verdicts.items():
        if ratio is not None and not 1 / (1 + SHARE) <= ratio / median <= 1 + SHARE:
            verdicts[number] = _Verdict(
                "mismatch", f"{reason}: {ratio:.2f} times, the median of the file is {median:.2f}"
            )
    return [RecordCheck(file, number, subjects[number], *verdicts[number][:2]) for number in sorted(subjects)]


def _check_task(folder: Path, group: Mapping[int, Result], judge: CostModel | str) -> dict[int, _Verdict]:
    """Check the records of one task, which claim costs, by the number of their lines."""
    try:
        task = read_task(next(iter(group.values())), folder)
    except InputError as error:
        return dict.fromkeys(group, _Verdict("mismatch", str(error)))
    verdicts: dict[int, _Verdict] = {}
    scored: dict[int, tuple[ShardingPlan, PlanCost]] = {}
    for number, result in group.items():
        plan = result.plan
        cost = result.cost
        assert plan is not None  # as the result is ok
        assert cost is not None
        problems = plan_problems(task, plan.shards, plan.group_size)
        if problems:
            verdicts[number] = _Verdict("mismatch", f"the plan is infeasible: {problems[0]}")
        elif isinstance(judge, str):
            verdicts[number] = _Verdict("skipped", judge)
        else:
            scored[number] = plan, cost
    if isinstance(judge, str) or not scored:
        return verdicts
    try:
        answers = judge.evaluate(task, [plan for plan, _ in scored.values()])
    except (InputError, MeasurementError) as error:
        return verdicts | dict.fromkeys(scored, _Verdict("skipped", f"the judge cannot score it here: {error}"))
    # A task is measured at one pace, so a record gains nothing by a lower one of its own.
    pace = max(cost.pace for _, cost in scored.values())
    for (number, (_, old)), new in zip(scored.items(), answers, strict=True):
        if not new.feasible:
            verdicts[number] = _Verdict("mismatch", f"cannot be scored again: {new.reason}")
            continue
        where = _difference(old, new, exact=judge.deterministic)
        ratio = None
        if not judge.deterministic and not where:
            new = new.at_pace(pace)
            ratio = new.total_ms / max(old.total_ms, 1e-9)
        said = f"stored {old.total_ms:.7g} ms, now {new.total_ms:.7g} ms"
        verdicts[number] = _Verdict("mismatch", where) if where else _Verdict("ok", said, ratio)
    return verdicts


def _difference(old: PlanCost, new: PlanCost, *, exact: bool) -> str:
    """Say where two costs differ, in times by more than `EXACT` where they are to agree, and "" where they agree."""
    sources = [
        f"{len(cost.per_device)} devices, {cost.origin}{', ids hidden' if cost.ids_hidden else ''}"
        for cost in (old, new)
    ]
    if sources[0] != sources[1]:
        return f"stored {sources[0]}, now {sources[1]}"
    if not exact:
        return ""
    far = ~np.isclose(old.per_device, new.per_device, rtol=EXACT, atol=0)
    same_total = np.isclose(old.total_ms, new.total_ms, rtol=EXACT, atol=0)
    what = "" if same_total else f"stored {old.total_ms:.7g} ms, now {new.total_ms:.7g} ms"
    if far.any():
        device, phase = np.argwhere(far)[0].tolist()
        times = [f"{cost.per_device[device, phase]:.7g} ms" for cost in (old, new)]
        what += f"{what and '; '}{PHASES[phase]} of device {device}: stored {times[0]}, now {times[1]}"
    return what
