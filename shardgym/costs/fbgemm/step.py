"""Complete training steps of all devices at once, on the CPU, and how the parts of a step add up.

One process per device keeps its part of a plan. In a step, ids are exchanged (lengths, then values), bags are pooled,
pooled values are exchanged, their gradients are exchanged, and weights are updated in the backward pass.

Every device has a clock that its work and its exchanges move on. Work counts by the CPU time of the process's thread,
so a process that has to share its core is charged for its own work only. Exchanges are measured between network
namespaces (`namespaces.py`), each device entering when its clock says so while all others hold still; or they are
modelled, by a link model that prices the bytes which each device really sent (`shardgym.costs.link_model`). So what
a device waits follows from the work of all devices, and not from who was disturbed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.fbgemm.communication import CollectiveGroup
from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.machine import available_bytes
from shardgym.costs.fbgemm.rounds import interleaved
from shardgym.costs.link_model import LinkModel
from shardgym.errors import MeasurementError
from shardgym.task import ELEMENT_BYTES, ShardingTask

#: Parts of a step in order. Those that end in `_exchange` are all-to-alls, the others work of the device alone.
PARTS = (
    "pack_ids", "lengths_exchange", "count_ids", "values_exchange", "group_ids", "forward", "output_exchange",
    "join_outputs", "pack_gradients", "gradient_exchange", "backward",
)  # fmt: skip
EXCHANGES = tuple(n for n, part in enumerate(PARTS) if part.endswith("_exchange"))
#: Phase of each part, as a column of `PlanCost.per_device`.
_PHASES = np.array([0, 0, 0, 0, 0, 1, 2, 2, 3, 3, 4])

MODULE = "shardgym.costs.fbgemm.step_rank"
#: Switches of FBGEMM that a user's shell must not change. Ids are checked as by default (BoundsCheckMode.WARNING).
ENVIRONMENT = {
    "FBGEMM_EXPERIMENTAL_TBE": "0",
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "1",
    "FBGEMM_TBE_REPORT_INPUT_PARAMS": "0",
}

#: Share of the available memory that a plan may take.
_USABLE = 0.9
#: Pooled values on a device, with their gradients, buffers of exchanges and what kernels allocate, in copies of them.
_OUTPUT_COPIES = 6
_ID_BYTES = 8
_RESAMPLES = 200


class StepJob(NamedTuple):
    """A message to all ranks: steps of one plan.

    Attributes:
        shard_sets: of all devices, None where a device holds nothing.
        batches: numbers of the batches of ids; ids of different numbers are drawn apart.
        warmups: how many of the batches are for steps that are run and not reported.
        seed: of the id draws.
        timed_exchanges: whether devices enter exchanges when their clocks say so, and their time counts.
    """

    shard_sets: tuple[ShardSet | None, ...]
    batches: tuple[int, ...]
    warmups: int
    seed: int
    timed_exchanges: bool


class RankSteps(NamedTuple):
    """The answer of one rank; I timed steps, P parts.

    Attributes:
        parts_ms: CPU time of work; of exchanges the wall time from when this rank enters, 0 if they are not timed,
            shape (I, P).
        sent: lengths, ids and pooled values sent to every rank, shape (I, 3, D).
    """

    parts_ms: Floats
    sent: Ints


class PlanSteps(NamedTuple):
    """Measured parts of the steps of one plan; R rounds of I steps on D devices, each step with ids of its own.

    Attributes:
        parts_ms: as in `RankSteps`, shape (R, I, D, P).
        sent_lengths, sent_ids, sent_values: how many elements each device (row) sent to each other one (column),
            shape (R, I, D, D).
    """

    parts_ms: Floats
    sent_lengths: Ints
    sent_ids: Ints
    sent_values: Ints


def time_steps(
    group: CollectiveGroup,
    plans: Mapping[int, Sequence[ShardSet | None]],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    first_batch: int,
    seed: int,
    rng: random.Random,
    timed_exchanges: bool,
) -> tuple[dict[int, PlanSteps], dict[int, str]]:
    """Run steps of all plans in rounds of random order.

    All plans of a round take the same batches of ids; every round has new ones. A plan's weights are allocated afresh
    in each round, so that the luck of where its pages lie is drawn anew as well.

    Args:
        group: of processes that run `MODULE`.
        plans: shard sets of all devices, by number of the plan.
        rounds: passes over the plans.
        warmups: untimed steps of a plan in a round.
        iterations: timed steps of a plan in a round.
        first_batch: number of the first batch of ids; `rounds * (warmups + iterations)` are used.
        seed: of the id draws.
        rng: shuffles rounds.
        timed_exchanges: see `StepJob`.

    Returns:
        Steps by number of the plan, and the reason for each plan that failed. A failure ends the group's processes; the
        next plan starts new ones.
    """
    per_round = warmups + iterations
    samples: dict[int, list[PlanSteps]] = {n: [] for n in plans}
    failed: dict[int, str] = {}
    for n in interleaved(list(plans), rounds, rng, failed):
        start = first_batch + len(samples[n]) * per_round
        job = StepJob(tuple(plans[n]), tuple(range(start, start + per_round)), warmups, seed, timed_exchanges)
        try:
            require_memory(job)
            answers: list[RankSteps] = group.ask([job] * group.size)
        except MeasurementError as error:
            failed[n] = str(error)
            continue
        parts_ms = np.stack([rank.parts_ms for rank in answers], axis=1)
        sent = np.stack([rank.sent for rank in answers], axis=2)
        samples[n].append(PlanSteps(parts_ms, *sent.swapaxes(0, 1)))
    return {
        n: PlanSteps(*map(np.stack, zip(*taken, strict=True))) for n, taken in samples.items() if n not in failed
    }, failed


def require_memory(job: StepJob) -> None:
    """Raise `MeasurementError` if the weights, ids and pooled values of all devices do not fit into memory."""
    needed = 0
    for held in job.shard_sets:
        if held is not None:
            item = ELEMENT_BYTES[held.precision]
            needed += held.num_weights * item + held.num_states * 4
            needed += _OUTPUT_COPIES * held.batch_size * held.width * item + 2 * held.request_bytes(len(job.batches))
    available = int(available_bytes() * _USABLE)
    if needed > available:
        raise MeasurementError(f"a step needs {needed} bytes of memory, {available} bytes are available")


class StepPhases(NamedTuple):
    """A step of one plan in ms.

    Attributes:
        per_device: as `PlanCost.per_device`, shape (D, 5); ids with packing and grouping.
        noise: relative standard error of the whole step.
    """

    per_device: Floats
    noise: float


def phases_of(task: ShardingTask, steps: PlanSteps, links: LinkModel | None) -> StepPhases:
    """Return the phases of a plan's step.

    Args:
        task: batch size, precision and, for modelled exchanges, the topology.
        steps: what was measured.
        links: prices exchanges; None where they were timed.
    """
    sent = _sent_bytes(task, steps)

    def phases(parts: Floats) -> Floats:
        ms = _typical(parts)
        if links is not None:
            clocks = np.zeros(len(ms))
            for part in range(len(PARTS)):
                if part in EXCHANGES:
                    ms[:, part] = links.exit_ms(task.topology, clocks, sent[part]) - clocks
                clocks += ms[:, part]
        return np.stack([ms[:, phase == _PHASES].sum(axis=1) for phase in range(5)], axis=1)

    per_device = phases(steps.parts_ms)
    rng = np.random.default_rng(0)
    rounds = len(steps.parts_ms)
    resampled = rng.integers(0, rounds, size=(_RESAMPLES, rounds))
    totals = [phases(steps.parts_ms[chosen]).sum(axis=1).max() for chosen in resampled]
    mean = float(np.mean(totals))
    return StepPhases(per_device, float(np.std(totals)) / mean if mean > 0 else 0.0)


def _typical(parts: Floats) -> Floats:
    """Return the mean over rounds of the median over a round's steps, shape (D, P).

    Rounds differ in the pages that weights lie on and in what else the machine does. Their mean varied less between
    repeats (5 %) than the median over all steps (6 to 7 %) at a load of 8 on two cores.
    """
    return np.asarray(np.median(parts, axis=1).mean(axis=0), dtype=np.float64)


def _sent_bytes(task: ShardingTask, steps: PlanSteps) -> dict[int, Floats]:
    """Return what each device sends to each in an exchange, the mean over steps, by number of the part."""
    outputs = steps.sent_values.mean(axis=(0, 1)) * ELEMENT_BYTES[task.precision]
    payloads = {
        "lengths_exchange": steps.sent_lengths.mean(axis=(0, 1)) * _ID_BYTES,
        "values_exchange": steps.sent_ids.mean(axis=(0, 1)) * _ID_BYTES,
        "output_exchange": outputs,
        "gradient_exchange": outputs.T,
    }
    return {PARTS.index(part): payload for part, payload in payloads.items()}
