"""Measuring in rounds: complete training steps of all devices at once, how their parts add up, and kernels alone.

One process per device keeps its part of a plan. In a step, ids are exchanged (lengths, then values), bags are pooled,
pooled values are exchanged, or all rows of unpooled tables, their gradients are exchanged, and weights are updated in
the backward pass. As in TorchRec there is an operator, and there are exchanges of its outputs, for each way in which
these are exchanged, see `shardgym.costs.fbgemm.step_plan`; ids of all of them travel together.

gloo has a reduce-scatter in name only: it all-reduces, which moves twice the bytes (on 4 ranks 101 MB of loopback
traffic for an input of 16.8 MB each, 50 MB in an all-to-all of it), and keeps a slice. So partial sums go by an
all-to-all, which moves what a ring would, and the receiver adds them up. All-gathers and all-reduces are gloo's own.
What gloo adds up in an all-reduce counts where exchanges are timed, and not where they are modelled.

Every device has a clock that its work and its exchanges move on. Work counts by the CPU time of the process's thread,
so a process that has to share its core is charged for its own work only. Exchanges are measured between network
namespaces (`namespaces.py`), each device entering when its clock says so while all others hold still; or they are
modelled, by a link model that prices the bytes which each device really sent (`shardgym.costs.link_model`). So what
a device waits follows from the work of all devices, and not from who was disturbed.
"""

import math
import random
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.fbgemm.jobs import ShardSet, TimingJob
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.fbgemm.workers import Workers
from shardgym.costs.link_model import LinkModel, latency_ms
from shardgym.errors import MeasurementError
from shardgym.machine import available_bytes
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

#: Parts of a step in order, and the phase of each, as a column of `PlanCost.per_device`. Those that end in `_exchange`
#: are exchanges, the others work of the device alone. A part takes 0 where a plan has none of what it is for:
#: `output` is of whole tables and columns, `sum` of tables cut by rows, `domain` and `between` of those in one domain,
#: `replica` of replicas, `row` of unpooled tables.
PHASE_OF_PART = {
    "pack_ids": 0, "lengths_exchange": 0, "count_ids": 0, "values_exchange": 0, "group_ids": 0, "forward": 1,
    "output_exchange": 2, "sum_exchange": 2, "domain_sum_exchange": 2, "add_sums": 2, "between_exchange": 2,
    "row_exchange": 2, "join_outputs": 2,
    "pack_gradients": 3, "gradient_exchange": 3, "sum_gradient_exchange": 3, "between_gradient_exchange": 3,
    "domain_gradient_exchange": 3, "row_gradient_exchange": 3, "replica_backward": 4, "replica_exchange": 3,
    "backward": 4,
}  # fmt: skip
PARTS = tuple(PHASE_OF_PART)
_PHASES = np.array(list(PHASE_OF_PART.values()))

#: Share of the available memory that a plan may take.
_USABLE = 0.9
#: Pooled values on a device, with their gradients, buffers of exchanges and what kernels allocate, in copies of them.
_OUTPUT_COPIES = 6
#: Of a bootstrap over rounds.
_RESAMPLES = 200

K = TypeVar("K")


class StepJob(NamedTuple):
    """A message to all ranks: steps of one plan."""

    plan: StepPlan
    batches: tuple[int, ...]  #: numbers of the batches of ids; ids of different numbers are drawn apart
    warmups: int  #: how many of the batches are for steps that are run and not reported
    seed: int  #: of the id draws
    timed_exchanges: bool  #: whether devices enter exchanges when their clocks say so, and their time counts
    pace: float  #: of the machine, see `shardgym.costs.fbgemm.pace`


class RankSteps(NamedTuple):
    """The answer of one rank; I timed steps, P parts."""

    #: Time of work; of exchanges the wall time from when this rank enters, 0 if they are not timed, shape (I, P).
    parts_ms: Floats
    #: Sent to every rank in each exchange that the plan has, by its part, shape (I, D). An all-reduce is two exchanges
    #: of these.
    sent_bytes: Mapping[str, Ints]


class PlanSteps(NamedTuple):
    """Measured parts of the steps of one plan; R rounds of I steps on D devices, each step with ids of its own."""

    parts_ms: Floats  #: as in `RankSteps`, shape (R, I, D, P)
    #: Likewise, what each device (row) sent to each other one (column), shape (R, I, D, D).
    sent_bytes: Mapping[str, Ints]


def time_steps(
    group: Workers,
    plans: Mapping[int, StepPlan],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    seed: int,
    rng: random.Random,
    timed_exchanges: bool,
    pace: float,
) -> tuple[dict[int, PlanSteps], dict[int, str]]:
    """Run steps of all plans, by number, in rounds of random order.

    All plans of a round take the same batches of ids; every round has new ones. A plan's weights are allocated afresh
    in each round, so that the luck of where its pages lie is drawn anew as well.

    Returns:
        Steps by number of the plan, and the reason for each plan that failed. A failure ends the group's processes; the
        next plan starts new ones.
    """
    per_round = warmups + iterations
    samples: dict[int, list[PlanSteps]] = {n: [] for n in plans}
    failed: dict[int, str] = {}
    for n in interleaved(list(plans), rounds, rng, failed):
        start = len(samples[n]) * per_round
        job = StepJob(plans[n], tuple(range(start, start + per_round)), warmups, seed, timed_exchanges, pace)
        try:
            if group.device == "cpu":
                require_memory(job)
            answers: list[RankSteps] = group.ask(job)
        except MeasurementError as error:
            failed[n] = str(error)
            continue
        samples[n].append(_together([PlanSteps(*rank) for rank in answers], axis=1))
    return {n: _together(taken, axis=0) for n, taken in samples.items() if n not in failed}, failed


def _together(taken: Sequence[PlanSteps], axis: int) -> PlanSteps:
    """Return steps of all ranks, or of all rounds, along a new axis."""
    exchanges = taken[0].sent_bytes
    sent_bytes = {part: np.stack([steps.sent_bytes[part] for steps in taken], axis) for part in exchanges}
    return PlanSteps(np.stack([steps.parts_ms for steps in taken], axis), sent_bytes)


def require_memory(job: StepJob) -> None:
    """Raise `MeasurementError` if the weights, ids and pooled values of all devices do not fit into memory."""
    plan, batches = job.plan, len(job.batches)
    example = plan.example
    item = ELEMENT_BYTES[example.precision]
    needed = _OUTPUT_COPIES * example.batch_size * plan.pooled_columns * item
    for device in range(plan.num_devices):
        for held in plan.exchanged(device):
            needed += held.num_weights * item + held.num_states * 4 + 2 * held.request_bytes(batches)
    for held in plan.replicated():  # gradients are dense
        needed += plan.num_devices * (2 * held.num_weights * item + held.num_states * 4)
        needed += 2 * held.request_bytes(batches)
    available = int(available_bytes() * _USABLE)
    if needed > available:
        raise MeasurementError(f"a step needs {needed} bytes of memory, but {available} bytes are available")


class StepPhases(NamedTuple):
    """A step of one plan."""

    per_device: Floats  #: in ms, as `PlanCost.per_device`, shape (D, 5); ids with packing and grouping
    noise: float  #: relative standard error of the whole step


def phases_of(
    task: ShardingTask,
    steps: PlanSteps,
    links: LinkModel | None,
    *,
    pace: float = 1.0,
    with_latency: bool = False,
    ids_hidden: bool = False,
) -> StepPhases:
    """Return the phases of a plan's step.

    Args:
        task: batch size, precision and, for modelled exchanges, the topology.
        steps: what was measured.
        links: prices exchanges; None where they were timed.
        pace: pace of the machine, see `shardgym.costs.fbgemm.pace`.
        with_latency: whether exchanges that were timed also take the latency of the topology's links, which those
            between network namespaces do not have.
        ids_hidden: whether `noise` is that of totals without the exchange of ids.
    """
    first = 1 if ids_hidden else 0
    sent = {part: sent_bytes.mean(axis=(0, 1)) for part, sent_bytes in steps.sent_bytes.items()}

    def phases(parts: Floats) -> Floats:
        ms = _typical(parts)
        for part in sent if with_latency else ():
            ms[:, PARTS.index(part)] += pace * _rounds(part) * latency_ms(task.topology, sent[part])
        if links is not None:
            clocks = np.zeros(len(ms))  # at the pace of the link model, 1
            for number, part in enumerate(PARTS):
                through_ms = clocks
                for _ in range(_rounds(part) if part in sent else 0):
                    through_ms = links.exit_ms(task.topology, through_ms, sent[part], _groups(task, part))
                ms[:, number] += pace * (through_ms - clocks)
                clocks = clocks + ms[:, number] / pace
        return np.stack([ms[:, phase == _PHASES].sum(axis=1) for phase in range(5)], axis=1)

    noise = relative_error(lambda rows: phases(steps.parts_ms[rows])[:, first:], len(steps.parts_ms))
    return StepPhases(phases(steps.parts_ms), noise)


def _typical(parts: Floats) -> Floats:
    """Return the mean over rounds of the median over a round's steps, shape (D, P); of kernels: `mean_of_medians`.

    Rounds differ in the pages that weights lie on and in what else the machine does. Their mean varied less between
    repeats (5 %) than the median over all steps (6 to 7 %) at a load of 8 on two cores.
    """
    return np.asarray(np.median(parts, axis=1).mean(axis=0), dtype=np.float64)


def _rounds(part: str) -> int:
    """Return of how many exchanges a part consists."""
    return 2 if part == "replica_exchange" else 1


def _groups(task: ShardingTask, part: str) -> Ints | None:
    """Return which devices take part in an exchange together, shape (D,); None where all do."""
    size = task.topology.fast_domain_size
    if part.startswith("domain"):
        return np.arange(task.num_devices) // size
    if part.startswith("between"):
        return np.arange(task.num_devices) % size
    return None


def interleaved(keys: Sequence[K], rounds: int, rng: random.Random, failed: Container[K]) -> Iterator[K]:
    """Yield every key once per round in random order, so that drift of the machine affects all of them alike.

    Keys that are in `failed` when their turn comes are skipped; the caller may add to it meanwhile.
    """
    for _ in range(rounds):
        for key in rng.sample(keys, len(keys)):
            if key not in failed:
                yield key


def time_shard_sets(
    timer: Workers, shard_sets: Iterable[ShardSet], *, rounds: int, warmups: int, iterations: int, rng: random.Random
) -> tuple[dict[ShardSet, Floats], dict[ShardSet, str], dict[ShardSet, tuple[str, ...]]]:
    """Time every distinct shard set once per round.

    Returns:
        Forward and backward times in ms, shape (rounds, iterations, 2); why there are none; and caveats.
    """
    samples: dict[ShardSet, list[Floats]] = {}
    failed: dict[ShardSet, str] = {}
    notes: dict[ShardSet, dict[str, None]] = {}
    timer.start()
    for shard_set in interleaved(list(dict.fromkeys(shard_sets)), rounds, rng, failed):
        try:
            (answer,) = timer.ask(TimingJob(shard_set, warmups, iterations))
        except MeasurementError as error:
            failed[shard_set] = str(error)
        else:
            samples.setdefault(shard_set, []).append(answer.times)
            notes.setdefault(shard_set, {}).update(dict.fromkeys(answer.notes))
    times = {s: np.stack(rows) for s, rows in samples.items() if s not in failed}
    return times, failed, {s: tuple(noted) for s, noted in notes.items()}


def mean_of_medians(samples: Floats) -> Floats:
    """Return the mean over steps of the median over rounds, shape (...), from samples of shape (rounds, steps, ...).

    Step i of every round did exactly the same work, other steps did not. Of complete steps none did: see `_typical`.
    """
    return np.asarray(np.median(samples, axis=0).mean(axis=0), dtype=np.float64)


def relative_error(phases_of: Callable[[Ints], Floats], rounds: int) -> float:
    """Return the relative standard error of a plan's total, by a bootstrap over rounds.

    Means of R rounds drawn again spread by sqrt((R - 1) / R) of the standard error, which is undone. `phases_of`
    returns the phases that count, shape (D, phases), from some of the rounds, by their numbers.
    """
    chosen = np.random.default_rng(0).integers(0, rounds, size=(_RESAMPLES, rounds))
    totals = np.array([phases_of(rows).sum(axis=1).max() for rows in chosen])
    return float(totals.std() / totals.mean()) * math.sqrt(rounds / max(rounds - 1, 1)) if totals.any() else 0.0
