"""Communication of measured plans: timed on a group of processes, or from the link model of the task's topology."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.collectives.interleave import time_exchanges
from shardgym.costs.collectives.jobs import Exchange
from shardgym.costs.collectives.link_model import comm_times
from shardgym.costs.collectives.measured import CollectiveGroup
from shardgym.costs.collectives.splits import pooled_widths, start_offsets
from shardgym.costs.workers.machine import usable_cores
from shardgym.costs.workers.statistics import centre
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

Choice = Literal["auto", "measured", "modelled"]

#: Processes per core up to which exchanges are measured on the CPU.
RANKS_PER_CORE = 4
#: Iterations of an exchange for every iteration of compute: they are shorter and noisier.
_ITERATION_FACTOR = 3
#: Offsets are rounded to this, so that plans with the same compute share a measurement.
_OFFSET_STEP_MS = 0.01


class Comm(NamedTuple):
    """Rounds of one plan's communication in ms, each of shape (rounds, D)."""

    forward: Floats
    backward: Floats


def measures(choice: Choice, device: str, num_devices: int) -> bool:
    """Say whether exchanges of so many devices are measured here.

    Raises:
        InputError: they should be measured and the machine has too few cores or GPUs.
    """
    limit = _limit(device)
    if choice == "measured" and num_devices > limit:
        raise InputError(
            f"comm='measured' for {num_devices} devices: this machine takes up to {limit}; "
            "use comm='auto' or comm='modelled'"
        )
    return choice != "modelled" and num_devices <= limit


def _limit(device: str) -> int:
    if device == "cpu":
        return RANKS_PER_CORE * len(usable_cores())
    import torch

    return torch.cuda.device_count()


def notes(task: ShardingTask, *, measured: bool, device: str) -> tuple[str, ...]:
    """Return what a reader of the communication times must know."""
    if not measured:
        return (f"communication from the link model of '{task.topology.interconnect}'",)
    cores = len(usable_cores())
    crowded = device == "cpu" and task.num_devices > cores
    return (f"{task.num_devices} processes share {cores} cores in the exchange",) if crowded else ()


def device_notes(task: ShardingTask, hardware: str) -> tuple[str, ...]:
    """Say so when compute was measured on other hardware than the task's topology names."""
    wanted, given = (re.sub("[^a-z0-9]", "", text.lower()) for text in (task.topology.device, hardware))
    matches = hardware.startswith("cpu") if wanted == "cpucore" else wanted in given
    return () if matches else (f"task is for '{task.topology.device}' devices; compute was measured on {hardware}",)


def modelled_comm(
    task: ShardingTask, plans: Mapping[int, ShardingPlan], compute: Mapping[int, Floats]
) -> dict[int, Comm]:
    """Return what the link model says for each plan, one round.

    Args:
        task: the task.
        plans: plans by number.
        compute: forward plus backward compute of each plan in ms, shape (D,).
    """
    times = {number: comm_times(task, plan, compute[number]) for number, plan in plans.items()}
    return {number: Comm(forward[None], backward[None]) for number, (forward, backward) in times.items()}


def measured_comm(
    group: CollectiveGroup,
    task: ShardingTask,
    plans: Mapping[int, ShardingPlan],
    compute: Mapping[int, Floats],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    rng: random.Random,
) -> tuple[dict[int, Comm], dict[int, str]]:
    """Time the exchanges of all plans, first all backward ones (aligned), then all forward ones (with start offsets).

    A device's offset is what it does between two forward exchanges (its compute and backward communication), minus
    the least of all devices.

    Returns:
        Communication by plan number, and the reason for each plan whose exchange failed.
    """
    effort = {"rounds": rounds, "warmups": warmups, "iterations": _ITERATION_FACTOR * iterations}
    aligned = {n: _exchange(task, plan, np.zeros(task.num_devices), backward=True) for n, plan in plans.items()}
    backward, lost = time_exchanges(group, list(aligned.values()), rng=rng, **effort)
    reasons = {n: lost[e] for n, e in aligned.items() if e in lost}
    skewed = {
        n: _exchange(task, plan, start_offsets(compute[n] + centre(backward[aligned[n]][:, None])), backward=False)
        for n, plan in plans.items()
        if n not in reasons
    }
    forward, lost = time_exchanges(group, list(skewed.values()), rng=rng, **effort)
    reasons |= {n: lost[e] for n, e in skewed.items() if e in lost}
    return {n: Comm(forward[e], backward[aligned[n]]) for n, e in skewed.items() if n not in reasons}, reasons


def _exchange(task: ShardingTask, plan: ShardingPlan, offsets: Floats, *, backward: bool) -> Exchange:
    rounded = np.round(offsets / _OFFSET_STEP_MS) * _OFFSET_STEP_MS
    widths = tuple(pooled_widths(task, plan).tolist())
    return Exchange(widths, task.batch_size, task.precision, tuple(rounded.tolist()), backward)
