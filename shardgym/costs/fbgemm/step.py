"""Versions 2 and 3 of the measured cost: complete training steps of all devices at once, and how their phases add up.

One process per device keeps its part of a plan. In a step, ids are exchanged (lengths, then values), bags are pooled,
pooled values are exchanged, their gradients are exchanged, and weights are updated in the backward pass. Each process
marks the wall clock, which all share, and its thread's CPU clock between the parts of a step.

Work of a device counts by CPU time, so a process that has to share its core is charged for its own work only. An
exchange counts from the moment the last device enters it. Where devices outnumber cores, nothing of an exchange can be
timed: then the link model (`shardgym.costs.link_model`) prices the bytes that each device really sent. Phases
follow from clocks, one per device, that work and exchanges move on; so what a device waits follows from the work of
all devices and not from who was disturbed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
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
        keeps_freed: whether a rank keeps the memory that it frees, see `step_rank.keep_freed_memory`.
    """

    shard_sets: tuple[ShardSet | None, ...]
    batches: tuple[int, ...]
    warmups: int
    seed: int
    keeps_freed: bool = False


class StepMarks(NamedTuple):
    """The answer of one rank; I timed steps, P parts.

    Attributes:
        wall_s: when each part began, and the end of the last one, on the clock that all ranks share, shape (I, P + 1).
        cpu_s: likewise on the CPU clock of the rank's thread, shape (I, P + 1).
        sent: lengths, ids and pooled values sent to every rank, shape (I, 3, D).
    """

    wall_s: Floats
    cpu_s: Floats
    sent: Ints


class PlanSteps(NamedTuple):
    """Measured parts of the steps of one plan; R rounds of I steps on D devices, each step with ids of its own.

    Attributes:
        parts_ms: CPU time of work, and of exchanges the wall time from the moment that the last device entered,
            shape (R, I, D, P).
        sent_lengths, sent_ids, sent_values: how many elements each device (row) sent to each other one (column),
            shape (R, I, D, D).
    """

    parts_ms: Floats
    sent_lengths: Ints
    sent_ids: Ints
    sent_values: Ints


def parts_of(marks: Sequence[StepMarks]) -> Floats:
    """Return the parts of steps from the marks of all ranks, in ms, shape (I, D, P)."""
    wall = np.stack([rank.wall_s for rank in marks], axis=1)
    cpu = np.stack([rank.cpu_s for rank in marks], axis=1)
    ms = np.diff(cpu, axis=2) * 1e3
    for part in EXCHANGES:
        all_in = wall[:, :, part].max(axis=1, keepdims=True)
        ms[:, :, part] = np.maximum(wall[:, :, part + 1] - all_in, 0.0) * 1e3
    return np.asarray(ms, dtype=np.float64)


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
    keeps_freed: bool = False,
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
        keeps_freed: whether ranks keep the memory that they free.

    Returns:
        Steps by number of the plan, and the reason for each plan that failed. A failure ends the group's processes; the
        next plan starts new ones.
    """
    per_round = warmups + iterations
    samples: dict[int, list[PlanSteps]] = {n: [] for n in plans}
    failed: dict[int, str] = {}
    for n in interleaved(list(plans), rounds, rng, failed):
        start = first_batch + len(samples[n]) * per_round
        job = StepJob(tuple(plans[n]), tuple(range(start, start + per_round)), warmups, seed, keeps_freed)
        try:
            require_memory(job)
            marks = group.ask([job] * group.size)
        except MeasurementError as error:
            failed[n] = str(error)
            continue
        sent = np.stack([rank.sent for rank in marks], axis=2)
        samples[n].append(PlanSteps(parts_of(marks), *sent.swapaxes(0, 1)))
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


#: When each device is through with an exchange, shape (D,), from the part's number and when each begins, shape (D,).
ExitTimes = Callable[[int, Floats], Floats]


def phases_of(task: ShardingTask, steps: PlanSteps, *, links: LinkModel | None, ids_hidden: bool) -> StepPhases:
    """Return the phases of a plan's step.

    Args:
        task: batch size, precision and, for modelled exchanges, the topology.
        steps: what was measured.
        links: prices exchanges; None to take the measured ones.
        ids_hidden: whether ids of the next step travel while this one computes, as in a training pipeline. Devices then
            meet first in the exchange of pooled values, and their clocks start where they leave the last one. Otherwise
            the exchange of ids begins a step for all devices at once.
    """
    sent = _sent_bytes(task, steps)

    def phases(parts: Floats) -> Floats:
        ms = _typical(parts)

        def exit_ms(part: int, entry_ms: Floats) -> Floats:
            if links is None:
                return np.asarray(entry_ms.max() + ms[:, part])
            return links.exit_ms(task.topology, entry_ms, sent[part])

        return _add_up(ms, exit_ms, ids_hidden=ids_hidden)

    per_device = phases(steps.parts_ms)
    rng = np.random.default_rng(0)
    rounds = len(steps.parts_ms)
    totals = []
    for chosen in rng.integers(0, rounds, size=(_RESAMPLES, rounds)):
        totals.append(phases(steps.parts_ms[chosen])[:, int(ids_hidden) :].sum(axis=1).max())
    mean = float(np.mean(totals))
    return StepPhases(per_device, float(np.std(totals)) / mean if mean > 0 else 0.0)


def _typical(parts: Floats) -> Floats:
    """Return the mean over rounds of the median over a round's steps, shape (D, P).

    Rounds differ in the pages that weights lie on and in what else the machine does. Their mean varied less between
    repeats (5 %) than the median over all steps (6 to 7 %) at a load of 8 on two cores.
    """
    return np.asarray(np.median(parts, axis=1).mean(axis=0), dtype=np.float64)


def _add_up(ms: Floats, exit_ms: ExitTimes, *, ids_hidden: bool) -> Floats:
    """Return phases, shape (D, 5), from the parts of a step, shape (D, P).

    Every device has a clock that its work and its exchanges, waits included, move on.
    """
    order = [n for n in range(len(PARTS)) if not ids_hidden or n >= PARTS.index("forward")]
    if ids_hidden:  # from one exchange of pooled values to the next
        turn = PARTS.index("join_outputs") - PARTS.index("forward")
        order = order[turn:] + order[:turn]
    clocks = np.zeros(len(ms))
    took = np.zeros_like(ms)
    for n in order:
        then = exit_ms(n, clocks) if n in EXCHANGES else clocks + ms[:, n]
        took[:, n] = then - clocks
        clocks = then
    part = dict(zip(PARTS, took.T, strict=True))
    forward_comm = part["output_exchange"] + part["join_outputs"]
    backward_comm = part["pack_gradients"] + part["gradient_exchange"]
    ids = took if not ids_hidden else ms  # hidden ones as they are, without waits
    ids_ms = ids[:, : PARTS.index("forward")].sum(axis=1)
    return np.column_stack([ids_ms, part["forward"], forward_comm, backward_comm, part["backward"]])


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
