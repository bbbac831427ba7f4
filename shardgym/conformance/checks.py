"""The promises of a solver, each judged from watched calls. A solver breaks a promise with its first offence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from shardgym.conformance.report import Check
from shardgym.conformance.trial import Trial
from shardgym.errors import NO_PLAN
from shardgym.plan import ShardingPlan, memory_problems, plan_problems

#: Yields None for every trial that keeps the promise and a sentence for every one that breaks it.
Judge = Callable[[Sequence[Trial]], Iterable[str | None]]

_NO_PLAN_EXPECTED = "no plan is feasible: expected NoFeasiblePlanError, or what plan.validate(task) raises"

#: Calls with the same seed; on the long task there is one.
_MAIN = ("first", "again", "fresh", "time limit", "no time limit")


def returns_plan(trials: Sequence[Trial]) -> Iterator[str | None]:
    """A `ShardingPlan` comes back for every feasible task."""
    for trial in _feasible(trials, _MAIN):
        yield None if isinstance(trial.returned, ShardingPlan) else _what_came(trial)


def plan_is_valid(trials: Sequence[Trial]) -> Iterator[str | None]:
    """The plan is for its task and holds every cell of every table once, in widths that FBGEMM takes."""
    for trial, plan in _plans(trials, _MAIN):
        yield _first(_cover_problems(trial, plan))


def memory_respected(trials: Sequence[Trial]) -> Iterator[str | None]:
    """No device holds more bytes than it has, optimiser state included."""
    for trial, plan in _plans(trials, _MAIN):
        yield _first(_memory_problems(trial, plan))


def same_seed_same_plan(trials: Sequence[Trial]) -> Iterator[str | None]:
    """The same seed gives the same plan, from the same object again and from a fresh one."""
    first = {trial.case.name: plan for trial, plan in _plans(trials, ("first",))}
    for trial, plan in _plans(trials, ("again", "fresh")):
        if trial.case.name in first:
            where = "when asked again" if trial.kind == "again" else "from a fresh solver"
            yield None if plan == first[trial.case.name] else f"another plan {where}"


def other_seeds_valid(trials: Sequence[Trial]) -> Iterator[str | None]:
    """Where one seed gives a feasible plan, so do others."""
    good = {trial.case.name for trial, plan in _plans(trials, ("first",)) if not _problems(trial, plan)}
    for trial in _feasible(trials, ("other seed",)):
        if trial.case.name in good:
            plan = trial.returned
            yield _first(_problems(trial, plan)) if isinstance(plan, ShardingPlan) else _what_came(trial)


def task_unchanged(trials: Sequence[Trial]) -> Iterator[str | None]:
    """The task is as it was, field by field and in its digest."""
    for trial in trials:
        yield "the task was changed" if trial.task_changed else None


def infeasible_reported(trials: Sequence[Trial]) -> Iterator[str | None]:
    """A task that no plan is feasible for ends in `NoFeasiblePlanError` or `InfeasiblePlanError`."""
    for trial in trials:
        if not trial.case.feasible and not trial.hung:
            yield None if isinstance(trial.error, NO_PLAN) else f"{_what_came(trial)}; {_NO_PLAN_EXPECTED}"


def silent(trials: Sequence[Trial]) -> Iterator[str | None]:
    """Nothing is written to stdout."""
    for trial in trials:
        yield f"printed {trial.printed[:60]!r}" if trial.printed else None


def global_random_untouched(trials: Sequence[Trial]) -> Iterator[str | None]:
    """The global generators of `random` and `numpy.random` are neither seeded nor drawn from."""
    for trial in trials:
        yield f"changed the state of {' and '.join(trial.random_changed)}" if trial.random_changed else None


JUDGES: tuple[Judge, ...] = (
    returns_plan, plan_is_valid, memory_respected, same_seed_same_plan, other_seeds_valid, task_unchanged,
    infeasible_reported, silent, global_random_untouched,
)  # fmt: skip


def judge(promise: Judge, trials: Sequence[Trial]) -> Check:
    """Judge one promise over all trials; it is not run when no trial says anything about it."""
    name = getattr(promise, "__name__", "check")
    verdicts = [[(trial, verdict) for verdict in promise(group)] for trial, group in _groups(trials)]
    found = [(trial, verdict) for group in verdicts for trial, verdict in group]
    broken = [f"'{trial.case.name}': {verdict}" for trial, verdict in found if verdict is not None]
    if broken:
        return Check(name, False, broken[0])
    if not found or any(trial.hung for trial in trials):
        return Check(name, None, "no call to judge by" if not found else "the solver hung before all calls were made")
    return Check(name, True, f"{len(found)} calls")


def _groups(trials: Sequence[Trial]) -> Iterator[tuple[Trial, list[Trial]]]:
    """Group trials by case, so that a verdict can name it."""
    by_case: dict[str, list[Trial]] = {}
    for trial in trials:
        by_case.setdefault(trial.case.name, []).append(trial)
    return ((group[0], group) for group in by_case.values())


def _feasible(trials: Sequence[Trial], kinds: Sequence[str]) -> Iterator[Trial]:
    return (t for t in trials if t.case.feasible and t.kind in kinds and not t.hung)


def _plans(trials: Sequence[Trial], kinds: Sequence[str]) -> Iterator[tuple[Trial, ShardingPlan]]:
    for trial in _feasible(trials, kinds):
        if isinstance(trial.returned, ShardingPlan):
            yield trial, trial.returned


def _problems(trial: Trial, plan: ShardingPlan) -> list[str]:
    return [*_cover_problems(trial, plan), *_memory_problems(trial, plan)]


def _cover_problems(trial: Trial, plan: ShardingPlan) -> list[str]:
    task = trial.case.task
    if plan.task_hash != task.digest:
        return [f"the plan is for task {plan.task_hash[:12]}, not for {task.digest[:12]}"]
    memory = set(_memory_problems(trial, plan))
    return [problem for problem in plan_problems(task, plan.shards) if problem not in memory]


def _memory_problems(trial: Trial, plan: ShardingPlan) -> list[str]:
    task = trial.case.task
    return list(memory_problems(task, [shard for shard in plan.shards if task.has_table(shard.table)]))


def _what_came(trial: Trial) -> str:
    if trial.error is not None:
        return f"raised {type(trial.error).__name__}: {trial.error}".split("\n")[0][:200]
    if isinstance(trial.returned, ShardingPlan):
        return "returned a plan"
    return f"returned {type(trial.returned).__name__}"


def _first(problems: Sequence[str]) -> str | None:
    return problems[0] if problems else None
