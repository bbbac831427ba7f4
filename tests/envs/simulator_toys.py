"""Random tasks, and a simulator with random weights for them."""

from __future__ import annotations

import numpy as np
from random_simulator import random_simulator

from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

BATCH = 64


def random_task(rng, tables, devices, **options):
    """Tables of widths 4 to 32 with reuse histograms."""

    def table(number):
        histogram = np.zeros(17)
        histogram[:4] = rng.dirichlet(np.ones(4))
        return EmbeddingTable(
            f"t{number}", int(rng.integers(50, 5000)), int(rng.choice([4, 8, 16, 32])), float(rng.integers(1, 20)),
            reuse_histogram=tuple(histogram.tolist()),
        )  # fmt: skip

    options = {"memory_bytes": 2**30} | options
    return ShardingTask(tuple(map(table, range(tables))), Topology(num_devices=devices, **options), batch_size=BATCH)


def random_oracle(path, *, steps=True):
    """Save random weights in `path` and return the simulator that has them: of complete steps, or of kernels alone."""
    rng = np.random.default_rng(2)
    return random_simulator(path, random_task(rng, 200, 2), rng, steps=steps)
