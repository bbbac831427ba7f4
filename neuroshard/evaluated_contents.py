"""Contents priced by any cost model, through whole plans."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from neuroshard.contents import Contents
from neuroshard.kinds import Kinds
from neuroshard.layout import plan_of
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PHASES
from shardgym.plan import Shard, ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask

_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]
_MUCH_MEMORY = 2**60


class EvaluatedContents(Contents):
    """Asks the cost model for plans of made-up tasks, in which every new content is one device's.

    A shard of some columns becomes a table of that width. Works with every cost model and is slow with most:
    the learned simulator is what the search is made for.

    Args:
        kinds: the shards.
        cost: any cost model.
    """

    def __init__(self, kinds: Kinds, cost: CostModel) -> None:
        self._cost = cost
        self._stand_ins: dict[tuple[int, int], EmbeddingTable] = {}
        super().__init__(kinds)

    def totals(self, contents: Ints) -> Floats:
        """See `Contents`."""
        plans = [plan_of(self.kinds, [self.held(content) for content in row]) for row in contents.tolist()]
        return np.array([cost.total_ms for cost in self._cost.evaluate(self.kinds.task, plans)])

    def _price(self, numbers: Ints, contents: Ints, kinds: Ints) -> Floats:
        del numbers
        held = [[*self.held(content), kind] for content, kind in zip(contents.tolist(), kinds.tolist(), strict=True)]
        task, plan = self._one_device_each(held)
        (cost,) = self._cost.evaluate(task, [plan])
        return np.asarray(cost.per_device[:, _COMPUTE].sum(axis=1), dtype=np.float64)

    def _one_device_each(self, held: Sequence[Sequence[int]]) -> tuple[ShardingTask, ShardingPlan]:
        tables, shards, seen = [], [], Counter[int]()
        for device, kinds in enumerate(held):
            for kind in kinds:
                table = self._stand_in(kind, seen[kind])
                seen[kind] += 1
                tables.append(table)
                shards.append(Shard.whole(table, device))
        memory = (_MUCH_MEMORY,) * len(held)
        topology = dataclasses.replace(
            self.kinds.task.topology, num_devices=len(held), memory_bytes=memory, fast_domain_size=len(held)
        )
        task = dataclasses.replace(self.kinds.task, tables=tuple(tables), topology=topology, name="")
        return task, ShardingPlan.of(task, shards)

    def _stand_in(self, kind: int, copy: int) -> EmbeddingTable:
        """Return a table like a shard of a kind; copies differ by name."""
        if (kind, copy) not in self._stand_ins:
            table = self.kinds.task.tables[self.kinds.tables[kind]]
            self._stand_ins[kind, copy] = dataclasses.replace(
                table, name=f"{kind}.{copy}", embedding_dim=int(self.kinds.columns[kind])
            )
        return self._stand_ins[kind, copy]
