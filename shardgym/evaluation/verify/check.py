"""verify: score every stored plan again, all plans of a task together.

What it does for somebody else's files has limits. A deterministic judge takes as long as its task is large. A judge
that measures also takes as long as its settings say: rounds, steps, seconds until it gives up. A cost model states how
large these may be (`CostModel.limits`). Tasks that are measured have limits here.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from shardgym.arguments import check_list, check_name, describe
from shardgym.costs.base import GROUP, CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError, MeasurementError, MissingDependencyError, one_line
from shardgym.evaluation.incumbent import Budget
from shardgym.evaluation.result import read_task, record_files
from shardgym.evaluation.verify.agreement import (
    MeasuredAgain,
    Remeasured,
    board_factor,
    deterministic_problem,
    measured_problem,
    solver_problems,
)
from shardgym.evaluation.verify.records import (
    CheckStatus,
    MeasuredBoard,
    RecordCheck,
    StoredRecord,
    VerifyReport,
    check_without_judge,
    format_tasks,
    read_file,
)
from shardgym.evaluation.verify.solve_again import TIMEOUT_S, GetCost, solve_again
from shardgym.machine import commit, utc_now
from shardgym.progress import progress_bar
from shardgym.records import canonical_json, short_repr
from shardgym.registry import find_class
from shardgym.tasks.task import ShardingTask

#: Of a task that is measured: several times the batch of the papers, and what a core looks up in some minutes.
TASK_LIMITS = {"batch_size": 2**18, "lookups of a step": 2**32}

#: On the command line, what lifts all of these limits.
FLAG = "--beyond-limits"

#: Records that were measured again, with what came of it, by file.
Measured = dict[Path, list[tuple[StoredRecord, Remeasured]]]

logger = logging.getLogger(__name__)


def verify(
    paths: str | Path | Iterable[str | Path],
    *,
    trust: Collection[str] = (),
    solve: bool = False,
    timeout_s: float = TIMEOUT_S,
    budget_s: float | None = None,
    solve_sample: int | None = None,
    obey_limits: bool = True,
    progress: bool = False,
) -> VerifyReport:
    """Score every stored plan again with its record's judge and settings, and check that records belong to their run.

    `shardgym.evaluation.verify.RULE` says when a stored and a fresh cost agree. Which records a run has is in
    the `run.json` beside them. Where all plans of a file were measured again, what came of it is written beside them.

    Args:
        paths: records files, or folders that are searched for them; one, or several.
        trust: judges and solvers of the form `module:Class` that may be imported; a record that names another is
            skipped, so that somebody else's file cannot make this process run code.
        solve: solve every task again, too, with the record's solver, seed and oracle, and compare plans.
        timeout_s: seconds that solving a plan again may take; a solver that takes longer is not checked, and named.
        budget_s: seconds for all of it: what is not verified by then is named, and the report is not ok.
        solve_sample: records of each file that are solved again, chosen by a hash; the others are counted.
        obey_limits: refuse settings of judges, and tasks, that ask for more measuring than files may.
        progress: draw a progress bar on standard error when it is a terminal.

    Raises:
        InputError: a path does not exist or cannot be read, a `run.json` is damaged, or an argument is of another kind.
    """
    listed = (
        [paths] if isinstance(paths, str | Path) else check_list("paths", paths, "files and folders", ordered=False)
    )
    files = record_files([check_name("path", path) for path in listed])
    trust = frozenset(check_list("trust", trust, "names 'module:Class'", ordered=False))
    budget = Budget(budget_s)
    for name in trust:
        if not isinstance(name, str) or ":" not in name:
            raise InputError(f"trust: expected module:Class, got {describe(name)}; registered names need no trust")
    rows: list[StoredRecord | RecordCheck] = []
    gaps: list[str] = []
    for file in files:
        file_rows, file_gaps = read_file(file)
        rows += file_rows
        gaps += file_gaps
    records = [row for row in rows if isinstance(row, StoredRecord)]
    checks: dict[str, RecordCheck] = {}
    measured: Measured = {}
    not_solved: Counter[str] = Counter()
    unsolved = len(records) if solve else 0
    groups = _by_task(records)
    with contextlib.suppress(TimeIsOver), interrupted_after(budget), ExitStack() as stack:
        get_judge = _cost_maker("judge", trust, obey_limits, stack)
        bar = stack.enter_context(progress_bar(shown=progress, total=len(groups), unit="task", desc="verify"))
        for group in groups:
            if not budget.left_s:
                raise TimeIsOver
            checks |= {check.where: check for check in _check_task(group, get_judge, obey_limits, measured)}
            bar.update()
    boards = [_compare_measured(file, pairs, checks) for file, pairs in measured.items()]
    for board in boards:
        claiming = [r for r in records if r.path == board.file and r.result.status == "ok"]
        _write_measured(board, [checks.get(record.where) for record in claiming])
    with contextlib.suppress(TimeIsOver), interrupted_after(budget), ExitStack() as stack:
        if solve and budget.left_s:
            get_oracle = _cost_maker("oracle", trust, obey_limits, stack)
            get_judge = _cost_maker("judge", trust, obey_limits, stack)
            bar = stack.enter_context(progress_bar(shown=progress, total=len(records), unit="plan", desc="solve"))
            solving = solve_again(records, checks, trust, get_oracle, get_judge, timeout_s, solve_sample)
            for check, why_not in stack.enter_context(contextlib.closing(solving)):
                checks[check.where] = check
                not_solved.update([why_not] if why_not else [])
                unsolved -= 1
                bar.update()
                if not budget.left_s:
                    raise TimeIsOver
    gaps += [f"{count} not solved again: {why}" for why, count in not_solved.items()]
    unfinished = _unfinished(records, checks, unsolved, budget_s)
    for record in records:
        checks.setdefault(record.where, record.checked("skipped", "the time was over"))
    named = {
        name for r in (record.result for record in records) for name in (r.judge, r.oracle, r.made_from or r.solver)
    }
    checked = [row if isinstance(row, RecordCheck) else checks[row.where] for row in rows]
    return VerifyReport(checked, gaps, sorted(trust - named), unfinished, boards)


def _unfinished(
    records: Sequence[StoredRecord], checks: Mapping[str, RecordCheck], unsolved: int, budget_s: float | None
) -> list[str]:
    """Return a line per file whose records were not all scored in time, and one on what was not solved again."""
    tasks: dict[Path, list[int]] = defaultdict(list)
    for record in records:
        if record.where not in checks:
            tasks[record.path].append(record.result.task_index)
    lines = [f"not scored again: {format_tasks(indices)} of {file}" for file, indices in tasks.items()]
    lines += [f"not solved again: {unsolved} records"] if unsolved else []
    return [f"stopped after {budget_s:.3g} s, {line}" for line in lines]


def _cost_maker(role: str, trust: Collection[str], obey_limits: bool, stack: ExitStack) -> GetCost:
    """Return a function that makes the judges or oracles that records name, once each; the stack closes them.

    Settings beyond the limits of a cost model are refused if these are to be obeyed.
    """
    made: dict[str, tuple[CostModel | None, str]] = {}

    def get_cost(name: str, settings: Mapping[str, Any]) -> tuple[CostModel | None, str]:
        key = canonical_json([name, dict(settings)])
        if key in made:
            return made[key]
        if ":" in name and name not in trust:
            made[key] = None, f"its {role} is '{name}': to import it, pass --trust {name}"
        else:
            try:
                too_much = beyond_limits(settings, getattr(find_class("cost", GROUP, name), "limits", {}))
                if obey_limits and too_much is not None:
                    made[key] = None, f"its {role} has {too_much}"
                else:
                    made[key] = stack.enter_context(make_cost(name, **settings)), ""
            except (InputError, MissingDependencyError) as error:
                made[key] = None, f"its {role} cannot be made here: {error}"
        return made[key]

    return get_cost


def _by_task(records: Iterable[StoredRecord]) -> list[list[StoredRecord]]:
    """Group records of one file, task and judge: they are scored in one call."""
    groups: dict[tuple[str, ...], list[StoredRecord]] = defaultdict(list)
    for record in records:
        settings = canonical_json(record.result.judge_settings)
        groups[str(record.path), record.result.task_hash, record.result.judge, settings].append(record)
    return list(groups.values())


def _check_task(
    records: Sequence[StoredRecord], get_judge: GetCost, obey_limits: bool, measured: Measured
) -> list[RecordCheck]:
    """Check records of one task and judge; those that were measured again go to `measured` instead."""
    checks: list[RecordCheck] = []
    scored: list[StoredRecord] = []
    for record in records:
        try:
            task = read_task(record.result, record.path.parent)
        except InputError as error:
            checks.append(record.checked("unreadable", str(error)))
            continue
        check = check_without_judge(record, task)
        if check is not None:
            checks.append(check)
        elif record.result.status == "ok":
            scored.append(record)
        else:
            checks.append(_check_unmeasured(record, task, get_judge))
    return checks + (_rescore(scored, task, get_judge, obey_limits, measured) if scored else [])


def _rescore(
    records: Sequence[StoredRecord], task: ShardingTask, get_judge: GetCost, obey_limits: bool, measured: Measured
) -> list[RecordCheck]:
    """Score the plans of one task afresh, unless it would be measured and asks for more than files may."""
    first = records[0].result
    judge, why_not = get_judge(first.judge, first.judge_settings)
    if judge is not None and not judge.deterministic and obey_limits:
        lookups = task.batch_size * sum(table.pooling_factor for table in task.tables)
        too_much = beyond_limits({"batch_size": task.batch_size, "lookups of a step": lookups}, TASK_LIMITS)
        if too_much is not None:
            judge = None
            why_not = f"its task has {too_much}"
    if judge is None:
        return [record.checked("skipped", why_not) for record in records]
    checks: list[RecordCheck] = []
    comparable: list[StoredRecord] = []
    for record in records:
        check = _check_judge(record, record.cost, judge)
        if check is None:
            comparable.append(record)
        else:
            checks.append(check)
    if not comparable:
        return checks
    try:
        if judge.deterministic:
            return checks + _recompute(comparable, task, judge)
        return checks + _measure(comparable, task, judge, measured)
    except (InputError, MeasurementError) as error:
        why_not = f"the judge cannot score it here: {error}"
        return checks + [record.checked("skipped", why_not) for record in comparable]


def _check_judge(record: StoredRecord, cost: PlanCost, judge: CostModel) -> RecordCheck | None:
    """Refuse to compare with costs of another model, version or hardware; None when they can be compared."""
    if cost.cost != judge.name:
        return record.checked("mismatch", f"cost is by {cost.cost}, the record's judge is {judge.name}")
    if cost.version != judge.version:
        return record.checked("skipped", f"scored by {judge.name} {cost.version}, this is {judge.version}")
    if cost.hardware != judge.hardware:
        status: CheckStatus = "mismatch" if judge.deterministic else "skipped"
        return record.checked(status, f"times of hardware {cost.hardware}, this is {judge.hardware}")
    return None


def _verdict(record: StoredRecord, fresh: PlanCost, problem: str | None) -> RecordCheck:
    if problem is not None:
        return record.checked("mismatch", problem)
    return record.checked("ok", f"stored {record.cost.total_ms:.4g} ms, now {fresh.total_ms:.4g} ms")


def _recompute(records: Sequence[StoredRecord], task: ShardingTask, judge: CostModel) -> list[RecordCheck]:
    checks = []
    for record, fresh in zip(records, judge.evaluate(task, [record.plan for record in records]), strict=True):
        problem = (
            deterministic_problem(record.cost, fresh) if fresh.feasible else f"cannot be scored again: {fresh.reason}"
        )
        checks.append(_verdict(record, fresh, problem))
    return checks


def _measure(
    records: Sequence[StoredRecord], task: ShardingTask, judge: CostModel, measured: Measured
) -> list[RecordCheck]:
    """Measure the plans of one task, interleaved; return what cannot be measured again."""
    checks = []
    for record, fresh in zip(records, judge.evaluate(task, [record.plan for record in records]), strict=True):
        if fresh.feasible:
            result = record.result
            plan = Remeasured(result.solver, result.task_index, record.plan.digest, record.cost, fresh)
            measured.setdefault(record.path, []).append((record, plan))
        else:
            checks.append(record.checked("mismatch", f"cannot be measured again: {fresh.reason}"))
    return checks


def _compare_measured(
    file: Path, pairs: Sequence[tuple[StoredRecord, Remeasured]], checks: dict[str, RecordCheck]
) -> MeasuredBoard:
    """Compare what was measured of a file with its records, into `checks`."""
    plans = [plan for _, plan in pairs]
    factor = board_factor(plans)
    for record, plan in pairs:
        checks[record.where] = _verdict(record, plan.new, measured_problem(plan, factor))
    return MeasuredBoard(file, len(pairs), factor, solver_problems(plans, factor))


def _write_measured(board: MeasuredBoard, claiming: Sequence[RecordCheck | None]) -> None:
    """Write beside records what measuring them again showed, if that was done for all that claim a cost."""
    done = [check for check in claiming if check is not None and check.status != "skipped"]
    if len(done) < len(claiming) or not 0 < board.factor < math.inf:
        return
    agrees = not board.problems and all(check.status == "ok" for check in done)
    digest = MeasuredAgain.digest_of(board.file)
    try:
        MeasuredAgain(digest, agrees, board.num_plans, board.factor, utc_now(), commit()).write(board.file)
    except InputError as error:
        logger.warning("tables go on saying that %s was not measured again: %s", board.file, error)


def _check_unmeasured(record: StoredRecord, task: ShardingTask, get_judge: GetCost) -> RecordCheck:
    """Check a feasible plan that is recorded as unmeasured: a deterministic judge must not be able to score it."""
    result = record.result
    recorded = f"{result.status}: {result.reason}"
    judge, why_not = get_judge(result.judge, result.judge_settings)
    if judge is None:
        return record.checked("skipped", why_not)
    if not judge.deterministic:
        return record.checked("skipped", recorded)
    other = _check_judge(record, result.cost, judge) if result.cost is not None else None
    if other is not None:
        return other
    try:
        (fresh,) = judge.evaluate(task, [record.plan])
    except Exception as error:  # whatever a judge raises makes a record of a run unmeasured
        return record.checked("skipped", f"{recorded}; now: {one_line(error)}")
    if fresh.feasible:
        return record.checked("mismatch", f"recorded as unmeasured, and the judge says {fresh.total_ms:.4g} ms")
    return record.checked("skipped", f"{recorded}; now: {fresh.reason}")


def beyond_limits(asked: Mapping[str, Any], limits: Mapping[str, float]) -> str | None:
    """Return the first number that exceeds its limit, and what lifts it; None when none does.

    Args:
        asked: numbers by name; what is no number is left to whoever it is for.
        limits: the largest ones, by name.
    """
    for name, limit in limits.items():
        value = asked.get(name)
        if isinstance(value, int | float) and not value <= limit:
            return f"{name}={short_repr(value)}, files may ask for at most {limit:,.0f}: {FLAG} obeys them"
    return None


class TimeIsOver(BaseException):
    """The time for a verification is over. No `Exception`: what a judge raises is caught, and this must get through."""


@contextlib.contextmanager
def interrupted_after(budget: Budget) -> Iterator[None]:
    """Raise `TimeIsOver` in the block when the budget is spent, whatever it is doing.

    Only the main thread of a system with alarms is interrupted.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not budget.limited or not in_main_thread or not hasattr(signal, "setitimer"):
        yield
        return

    def end(number: int, frame: object) -> NoReturn:  # noqa: ARG001
        raise TimeIsOver

    handler = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(budget.left_s, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
