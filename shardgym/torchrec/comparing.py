"""Comparison of plans by real training steps, in turns, until the faster one is known.

Every round runs each plan once, in random order, so that other load on a machine affects all of them alike. A turn
builds the model again; its time is the median of its steps, each as long as its slowest rank takes. The comparison uses
ratios to the first plan within a round: geometric means over rounds, with 95 % intervals of logarithms (Student's t).
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.base import make_cost
from shardgym.costs.calibrated import Calibration
from shardgym.costs.fbgemm.cuda import gpu_tag
from shardgym.costs.gpu.cards import planning_cost
from shardgym.costs.plan_cost import COMPUTE_COLUMNS, PHASES
from shardgym.costs.torchrec_steps import step_costs
from shardgym.errors import InputError, MeasurementError, ShardGymError, error_text
from shardgym.machine import cpu_tag, utc_now, versions
from shardgym.plans.migration import rebound
from shardgym.records import CONFIG, Label, Name, Number, Record, Whole
from shardgym.tasks.step_memory import StepMemory
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.contenders import Contender
from shardgym.torchrec.plan_file import PlanRecord, plan_record
from shardgym.torchrec.ranks import World
from shardgym.torchrec.real_steps import Job, TurnOfRank, run_turn

#: Rounds before there are intervals and calibrations.
MIN_ROUNDS = 4
#: Probability that an interval misses its ratio.
_LEVEL = 0.05

#: Parts of libraries' messages that tell that memory ran out, and that another rank is gone.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
_NO_PEER = ("gloo", "Gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")

Positive = Annotated[Number, Field(gt=0)]
Bytes = Annotated[Whole, Field(ge=0)]
Phases = Annotated[tuple[Annotated[Number, Field(ge=0)], ...], Field(min_length=len(PHASES), max_length=len(PHASES))]


@dataclass(frozen=True, config=CONFIG)
class PlanResult(Record):
    """Predictions and measurements of a plan.

    Attributes:
        name: name of the plan, as given.
        plan: TorchRec's plan as it ran.
        predicted_ms: times of a step on each rank by phase, in the order of `PHASES`, by the comparison's cost; empty
            without a prediction.
        predicted_bytes: bytes on each rank for tables and a step's data in flight in its hottest batch, see
            `StepMemory`, without what is reserved for others.
        round_ms: time of a step in each round, that of its slowest rank; the median of the timed steps.
        rank_ms: time of a step on each rank, including waits for others; the geometric mean of rounds' medians.
        phases_ms: times of embedding collections on each rank by phase, see `phases_ms`; the median over rounds.
        peak_bytes: peak memory of a turn on each rank, the median over rounds: torch's allocations on a GPU, the growth
            of the process on a CPU.
        ratio: time of its steps over those of the first plan, the geometric mean over rounds; None without rounds.
        low: lower end of the ratio's interval; None for the first plan, and before `MIN_ROUNDS` rounds.
        high: upper end of the ratio's interval.
    """

    name: Name
    plan: PlanRecord
    predicted_ms: tuple[Phases, ...] = ()
    predicted_bytes: tuple[Bytes, ...] = ()
    round_ms: tuple[Positive, ...] = ()
    rank_ms: tuple[Positive, ...] = ()
    phases_ms: tuple[Phases, ...] = ()
    peak_bytes: tuple[Bytes, ...] = ()
    ratio: Positive | None = None
    low: Positive | None = None
    high: Positive | None = None

    @property
    def predicted_rank_ms(self) -> list[float]:
        """Predicted time of a step on each rank; empty without a prediction."""
        return [sum(phases) for phases in self.predicted_ms]

    @property
    def half_width(self) -> float:
        """Half-width of the interval of the ratio's logarithm; infinite without an interval."""
        return math.inf if self.low is None or self.high is None else math.log(self.high / self.low) / 2


@dataclass(frozen=True, config=CONFIG)
class Comparison(Record):
    """A comparison of plans for a task.

    Attributes:
        task: task with the tables as trained.
        trained: whether a user's model on their own batches was trained, or only the embedding collections on ids drawn
            from the task.
        rows: share of the tables' rows that were kept.
        backend: backend of collectives, "nccl" or "gloo".
        hardware: tag of the first rank's device.
        ranks_per_host: ranks per machine.
        cost: cost model that predicted.
        plans: at least two plans; ratios are to the first.
        notes: which planner found no plan, and which plan has no prediction.
        within: half-width of intervals that ends the run.
        minutes: time limit that ends the run.
        ended: which of these two ended the run; None while it runs.
        calibration: levels at which the cost equals the measurements; None without predictions or `MIN_ROUNDS` rounds.
        ids_ms: time of the exchange of ids, which a calibration counts as fixed, but grows with the batch; 0 without.
        seed: seed of ids, gradients and the order of turns.
        started: start of the run in UTC.
        versions: versions of Python and of relevant packages.
    """

    task: ShardingTask
    trained: Literal["model", "collections"]
    rows: Annotated[Number, Field(gt=0, le=1)]
    backend: Label
    hardware: Label
    ranks_per_host: Annotated[Whole, Field(ge=1)]
    cost: Label
    plans: Annotated[tuple[PlanResult, ...], Field(min_length=2)]
    notes: tuple[str, ...]
    within: Positive
    minutes: Positive
    seed: Annotated[Whole, Field(ge=0)]
    started: str
    versions: dict[str, str]
    ended: Literal["within", "minutes"] | None = None
    calibration: Calibration | None = None
    ids_ms: Annotated[Number, Field(ge=0)] = 0.0
    schema: Literal["shardgym.comparison/1"] = "shardgym.comparison/1"

    def sentence(self) -> str:
        """Say which plan is faster and by how much, or that the difference is not significant."""
        first, *others = self.plans
        best = min(others, key=lambda plan: plan.ratio or math.inf)
        if best.low is None or best.high is None or best.ratio is None:
            return f"Before {MIN_ROUNDS} rounds, neither the faster plan nor the level is known: give more --minutes."
        if best.low <= 1 <= best.high:
            return (
                f"'{best.name}' and '{first.name}' do not differ clearly: the ratio of their steps is "
                f"{best.ratio:.3f}, between {best.low:.3f} and {best.high:.3f}."
            )
        fast, slow, shares = best.name, first.name, (best.ratio, best.high, best.low)
        if best.low > 1:
            fast, slow, shares = first.name, best.name, (1 / best.ratio, 1 / best.low, 1 / best.high)
        mean, least, most = (100 * (1 - share) for share in shares)
        return f"'{fast}' is faster than '{slow}': a step takes {mean:.1f} % less time ({least:.1f} to {most:.1f} %)."


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of the rounds' ratios, with its 95 % interval from `MIN_ROUNDS` rounds on."""
    from scipy import stats

    logs = np.log(ratios)
    mean = float(logs.mean())
    if len(logs) < MIN_ROUNDS:
        return math.exp(mean), None, None
    half = float(stats.t.isf(_LEVEL / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def measure(
    job: Job,
    contenders: Mapping[str, Contender],
    world: World,
    notes: Sequence[str],
    after_round: Callable[[Comparison], None],
    **settings: Any,
) -> Comparison:
    """Measure plans in rounds until all intervals are narrow enough or time is over; all ranks call this together.

    The function checks time after every turn, completes at least one round, and drops later rounds that are cut off.

    Args:
        job: the job to train.
        contenders: plans by name.
        world: the ranks of the job.
        notes: notes of the comparison.
        after_round: called on every rank with the comparison after each round.
        **settings: trained, rows, within, minutes and seed, see `Comparison`.

    Raises:
        MeasurementError: a rank ran out of memory, failed, or is gone. The other ranks only see that a rank is gone.
        InputError: the model does not return a loss.
    """
    comparison = _begun(job.task, contenders, world, notes, settings)
    shuffle = random.Random(comparison.seed)  # the same on all ranks
    start = time.monotonic()
    rounds: list[dict[str, list[TurnOfRank]]] = []
    order = list(contenders)
    while comparison.ended is None:
        shuffle.shuffle(order)
        turns: dict[str, list[TurnOfRank]] = {}
        is_over = False
        for name in order:
            with _one_line(f"plan '{name}', round {len(rounds) + 1}, rank {world.rank}"):
                own = run_turn(job, contenders[name].sharding_plan, world)
                ranks: list[Any] = [None] * world.size
                dist.all_gather_object(ranks, (own, time.monotonic() - start))
            turns[name] = [turn for turn, _ in ranks]
            is_over = ranks[0][1] >= 60 * comparison.minutes  # the clock of the first rank decides for all
            if is_over and rounds:
                break
        if len(turns) == len(order):
            rounds.append(turns)
            comparison = _calibrated(dataclasses.replace(comparison, plans=_results(comparison.plans, rounds)))
        if all(plan.half_width < comparison.within for plan in comparison.plans[1:]):
            comparison = dataclasses.replace(comparison, ended="within")
        elif is_over:
            comparison = dataclasses.replace(comparison, ended="minutes")
        after_round(comparison)
    return comparison


def _begun(
    task: ShardingTask,
    contenders: Mapping[str, Contender],
    world: World,
    notes: Sequence[str],
    settings: Mapping[str, Any],
) -> Comparison:
    """Return the comparison before the first round."""
    in_step = dataclasses.replace(task, step_memory=task.step_memory or StepMemory())
    name = planning_cost(task.topology.device)
    with make_cost(name) as cost:
        # Steps will show whether plans fit.
        roomy = dataclasses.replace(task, topology=task.topology.roomy(), step_memory=None)
        costs = step_costs(cost, roomy, [rebound(one.plan, roomy) for one in contenders.values()])
    plans = [
        PlanResult(
            plan,
            plan_record(one.sharding_plan),
            tuple(map(tuple, predicted.per_device.tolist())) if predicted.feasible else (),
            tuple(memory.total - memory.reserved for memory in one.plan.memory_per_device(in_step)),
        )
        for (plan, one), predicted in zip(contenders.items(), costs, strict=True)
    ]
    pairs = zip(contenders, costs, strict=True)
    unpriced = [f"{name} does not price '{plan}': {found.reason}" for plan, found in pairs if found.reason is not None]
    return Comparison(
        task=task,
        backend=world.backend,
        hardware=gpu_tag(world.device.index) if world.device.type == "cuda" else cpu_tag(),
        ranks_per_host=world.local_size,
        cost=name,
        plans=tuple(plans),
        notes=(*notes, *unpriced),
        started=utc_now(),
        versions=versions(),
        **settings,
    )


def _results(
    plans: tuple[PlanResult, ...], rounds: Sequence[Mapping[str, Sequence[TurnOfRank]]]
) -> tuple[PlanResult, ...]:
    """Return plans with the measurements of all rounds."""
    found: list[PlanResult] = []
    for plan in plans:
        turns = [of_round[plan.name] for of_round in rounds]
        slowest = [[max(step) for step in zip(*(rank.step_ms for rank in ranks), strict=True)] for ranks in turns]
        round_ms = tuple(map(statistics.median, slowest))
        first_ms = found[0].round_ms if found else round_ms
        ratio, low, high = mean_ratio([own / first for own, first in zip(round_ms, first_ms, strict=True)])
        of_ranks = list(zip(*turns, strict=True))
        found.append(
            dataclasses.replace(
                plan,
                round_ms=round_ms,
                rank_ms=tuple(
                    statistics.geometric_mean(statistics.median(t.step_ms) for t in rank) for rank in of_ranks
                ),
                phases_ms=tuple(tuple(np.median([t.phases_ms for t in rank], axis=0).tolist()) for rank in of_ranks),
                # The first turn of a process takes more, whichever plan it is of.
                peak_bytes=tuple(max(0, statistics.median_low(turn.peak_bytes for turn in rank)) for rank in of_ranks),
                ratio=ratio,
                low=low if found else None,
                high=high if found else None,
            )
        )
    return tuple(found)


def _calibrated(comparison: Comparison) -> Comparison:
    """Return the comparison with levels that make compute and exchanges of all plans equal the measurements."""
    priced = [plan for plan in comparison.plans if plan.predicted_ms]
    if not priced or len(priced[0].round_ms) < MIN_ROUNDS:
        return comparison
    predicted = np.array([plan.predicted_ms for plan in priced])
    measured = np.array([plan.phases_ms for plan in priced])
    compute_ms = measured[..., COMPUTE_COLUMNS].sum(axis=2)
    exchange_ms = measured[..., 2:4].max(axis=1).sum(axis=1)
    # Ranks that enter an exchange before the last one wait, which is no part of its level.
    expected_ms = predicted[..., 2].min(axis=1) + predicted[..., 3].max(axis=1)
    steps_ms = np.array([statistics.median(plan.round_ms) for plan in priced])
    alone = not expected_ms.any()  # a single rank exchanges nothing
    calibration = Calibration(
        "gpu" if comparison.cost == "gpu" else "roofline",
        comparison.task.topology.device,
        comparison.hardware,
        float(compute_ms.sum() / predicted[..., COMPUTE_COLUMNS].sum()),
        1.0 if alone else float(exchange_ms.sum() / expected_ms.sum()),
        max(0.0, float(np.median(steps_ms - compute_ms.max(axis=1) - exchange_ms))),
    )
    ids_ms = float(np.median(measured[..., 0].max(axis=1)))
    return dataclasses.replace(comparison, calibration=calibration, ids_ms=ids_ms)


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Turn an error in the block into one line."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(part in text for part in _NO_MEMORY):
            said = "out of memory; give fewer rows, a smaller batch or devices with more memory"
        elif isinstance(error, dist.DistError) or any(part in text for part in _NO_PEER):
            said = "another rank ended or does not answer; see its output, or torchrun's"
        else:
            said = text if isinstance(error, ShardGymError) else error_text(error)
        kind = InputError if isinstance(error, InputError) else MeasurementError
        raise kind(f"{where}: {said}") from error
