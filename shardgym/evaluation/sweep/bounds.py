"""What holds a plan up on its machine: what the step would save if one part of every device were twice as fast."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.gpu.cards import Card
from shardgym.costs.gpu.cost import AdditiveGpu, GpuCost, GpuSettings, card_of
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Number, Record
from shardgym.tasks.task import ShardingTask

#: Rows and states that cross the memory bus; lookups that take their turn on multiprocessors; exchanges; and start-up
#: times of kernels and exchanges, which no faster device shortens.
Bound = Literal["memory", "lookups", "links", "start-up"]
_PARTS: tuple[Literal["memory", "lookups", "links"], ...] = ("memory", "lookups", "links")

#: Milliseconds; what is slower elsewhere in the step may hide all of a gain.
Saved = Annotated[Number, Field(ge=0)]


@dataclass(frozen=True, config=CONFIG)
class Savings(Record):
    """What a step saves, in ms, if one part of all devices is twice as fast.

    Attributes:
        memory: bandwidth of their memory.
        lookups: clock of their multiprocessors, and with it the L2 cache.
        links: bandwidth of NVLink, or what is in its place, and of network cards.
    """

    memory: Saved
    lookups: Saved
    links: Saved

    def bound_by(self, total_ms: float) -> Bound:
        """Return which part takes most of a step, by what twice its speed saves.

        What takes all of a step saves half of it. Where the three together save less than a quarter, start-up times
        take more than half.
        """
        saved = {part: float(getattr(self, part)) for part in _PARTS}
        if sum(saved.values()) < total_ms / 4:
            return "start-up"
        return max(_PARTS, key=lambda part: saved[part])


def savings(task: ShardingTask, plan: ShardingPlan) -> Savings:
    """Return what a plan's step saves on a faster device, by the cost `gpu`.

    Args:
        task: whose topology names a card.
        plan: feasible.

    Raises:
        InputError: the device of the task is no GPU that is known.
    """
    topology = task.topology
    base = dataclasses.replace(
        card_of(task),
        nvlink=topology.intra_bandwidth,
        nic=topology.inter_bandwidth,
        domain_size=topology.fast_domain_size,
    )
    now = _total_ms(task, plan, base)
    faster = {
        "memory": dataclasses.replace(base, memory_bandwidth=2 * base.memory_bandwidth),
        "lookups": dataclasses.replace(base, clock_hz=2 * base.clock_hz),
        "links": dataclasses.replace(base, nvlink=2 * base.nvlink, nic=2 * base.nic),
    }
    return Savings(**{part: max(0.0, now - _total_ms(task, plan, card)) for part, card in faster.items()})


def _total_ms(task: ShardingTask, plan: ShardingPlan, card: Card) -> float:
    prices = AdditiveGpu(GpuSettings(), card)
    return GpuCost().plan_costs(prices, prices.batch(task, [plan]))[0].total_ms
