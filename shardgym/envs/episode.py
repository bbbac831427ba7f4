"""Episode: everything that changes while an environment is stepped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardgym.costs.plan_cost import PlanCost
from shardgym.envs.partial_cost import PartialCost
from shardgym.envs.placement import Placement


@dataclass
class Episode:
    """One task being placed.

    Attributes:
        task_index: of the task, -1 for one that is not of the sequence.
        placement: how far it has come.
        partial: cost of what is placed, where rewards are dense.
        earned: rewards so far.
        ended: whether there is nothing left to do.
        cost: of the complete plan.
    """

    task_index: int
    placement: Placement
    partial: PartialCost | None
    earned: float = 0.0
    ended: bool = False
    cost: PlanCost | None = None

    def copy(self) -> Episode:
        """Return an independent episode at the same point."""
        partial = None if self.partial is None else self.partial.copy()
        return Episode(self.task_index, self.placement.copy(), partial, self.earned, self.ended, self.cost)

    def put(self, device: int) -> None:
        """Place the next shard; the placement must not refuse the device."""
        if self.partial is not None:
            self.partial.put(self.placement.shard_of(self.placement.waiting[-1], device))
        self.placement.put(device)

    def earn(self, standing: float) -> float:
        """Return the reward that brings what is earned to `standing`."""
        reward, self.earned = standing - self.earned, standing
        return float(reward)

    def info(self, *, halving: bool) -> dict[str, Any]:
        """Return what `info` says at every step; the last two entries where shards can be halved."""
        placement, task = self.placement, self.placement.figures.task
        info = {
            "task_index": self.task_index, "task_hash": task.digest, "task": task.name,
            "table": placement.table_name, "placed": placement.placed,
        }  # fmt: skip
        if halving:
            info |= {"width": placement.waiting[-1].width if placement.waiting else 0, "splits": placement.splits}
        return info


@dataclass(frozen=True)
class Snapshot:
    """A point of an episode, to return to any number of times; can be pickled.

    Attributes:
        made_with: what the environment was made with as far as episodes depend on it.
        episode: never stepped.
    """

    made_with: tuple[Any, ...]
    episode: Episode
