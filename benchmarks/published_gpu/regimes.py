"""TorchEasyRec's three regimes on an A10 beside what the cost `gpu` says of rows in three places.

    python benchmarks/published_gpu/regimes.py

alibaba/TorchEasyRec pull request 508 publishes medians of forward and backward over a sweep of shares 0.1 to 1: 0.80 ms
with all rows on the GPU, 2.63 ms with a cache of rows there, 5.44 ms with a part of the rows there, chosen by a hash,
and the others in the host's memory. One table of 4M rows, 128 columns, Adam, power law 1.05. It is NVIDIA's dynamicemb
and not FBGEMM, and the batch is not published: here it is the one for which the first figure is predicted. The third
figure hardly depends on the share that is on the GPU, it says. So it is held against all rows in the host's memory; the
last line has half of them on the GPU.
"""

from __future__ import annotations

import dataclasses
import sys

from tabulate import tabulate

from shardgym.costs.base import make_cost
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import GIB, Topology

PUBLISHED_MS = {"GPU": 0.80, "cache": 2.63, "host": 5.44, "half and half": 5.44}
ROWS = 4 * 2**20
WHOLE = Shard("table", (0, ROWS), (0, 128), 0)
PLACES = {
    "GPU": [WHOLE],
    "cache": [dataclasses.replace(WHOLE, compute_kernel="fused_uvm_caching", cache_load_factor=0.5)],
    "host": [dataclasses.replace(WHOLE, compute_kernel="fused_uvm")],
    "half and half": [
        dataclasses.replace(WHOLE, rows=(0, ROWS // 2)),
        dataclasses.replace(WHOLE, rows=(ROWS // 2, ROWS), compute_kernel="fused_uvm"),
    ],
}


def predicted_ms(batch_size: int) -> dict[str, float]:
    """Return forward and backward on one A10 by where rows are."""
    topology = Topology(num_devices=1, memory_bytes=24 * GIB, device="a10", host_memory_bytes=64 * GIB)
    table = EmbeddingTable("table", ROWS, 128, 1.0, ZipfIds(1.05, row_order="scattered"))
    task = ShardingTask((table,), topology, batch_size, optimizer="adam")
    plans = [ShardingPlan.of(task, shards) for shards in PLACES.values()]
    costs = make_cost("gpu").evaluate(task, plans)
    return dict(zip(PLACES, (cost.total_ms for cost in costs), strict=True))


def main() -> int:
    """Run the command; returns its exit code."""
    low, high = 1024, 2**20
    while high - low > 16:
        middle = (low + high) // 2
        low, high = (middle, high) if predicted_ms(middle)["GPU"] <= PUBLISHED_MS["GPU"] else (low, middle)
    found = predicted_ms(low)
    rows = [
        [place, f"{ms:.2f}", f"{found[place]:.2f}", f"{found[place] / ms:.2f}"] for place, ms in PUBLISHED_MS.items()
    ]
    print(f"batch {low}")
    print(tabulate(rows, ["rows", "published ms", "predicted ms", "ratio"], tablefmt="github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
