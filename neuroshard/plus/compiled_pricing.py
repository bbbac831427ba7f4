"""Exact pricing by the simulator in compiled code."""

from __future__ import annotations

import numpy as np

from neuroshard.compiled_links import link_arrays_of, slowest_ms_over_links
from neuroshard.compiled_predictor import compute_head_of, exchange_network_of, head_ms, slowest_ms
from neuroshard.plus.pricing import ExactPricing
from neuroshard.shard_table import ShardTable
from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.predictor import AdditivePredictor
from shardgym.task import ELEMENT_BYTES


class CompiledPricing(ExactPricing):
    """The same prices as those of `ExactPricing`; for the few devices of a call, NumPy takes several times as long.

    Args:
        shards: of the task.
        costs: of a simulator.
        softness: see `Pricing`.

    Raises:
        InputError: `costs` knows no tasks of this kind.
    """

    def __init__(self, shards: ShardTable, costs: AdditivePredictor, softness: float) -> None:
        super().__init__(shards, costs, softness)
        self._head = compute_head_of(costs.networks.best)
        self._exchanges = {name: exchange_network_of(params) for name, params in costs.networks.comm.items()}
        self._links = link_arrays_of(costs.weights.links, shards.task) if costs.weights.links is not None else None

    def compute(self, sums: Floats) -> Floats:
        """See `Pricing`."""
        busy = sums[..., -1] > 0
        ms = np.zeros(busy.shape)
        ms[busy] = head_ms(self._head, np.ascontiguousarray(sums[busy][:, :-1]))
        return ms

    def totals(self, compute: Floats, columns: Ints) -> Floats:
        """See `Pricing`."""
        if self._links is not None:
            return slowest_ms_over_links(self._links, compute, columns.astype(np.float64))
        if not self._exchanges:  # communication is modelled by latency and rate
            return super().totals(compute, columns)
        task = self.shards.task
        return slowest_ms(
            self._exchanges["backward"], self._exchanges["forward"], compute, columns.astype(np.float64),
            float(task.batch_size), float(ELEMENT_BYTES[task.precision]),
        )  # fmt: skip
