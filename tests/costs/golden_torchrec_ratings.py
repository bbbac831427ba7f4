"""Let TorchRec's estimators price random plans, and store what they say for the tests of `torchrec_rating`.

    python tests/costs/golden_torchrec_ratings.py tests/costs/golden_torchrec_ratings.json

It needs TorchRec; the tests do not. The file holds tasks, plans, constants of the planner where they are not its
defaults, the four times of every device and the rating of the plan, all in ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from baselines.torchrec.planner import estimate
from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.costs.torchrec_rating import PlannerConstants

#: Devices, devices per host, batch, precision, constants that are not the default.
CASES: list[tuple[int, int, int, str, dict[str, Any]]] = [
    (2, 2, 100, "fp32", {}),
    (3, 3, 999, "fp32", {}),
    (8, 8, 8192, "fp16", {}),
    (8, 4, 8192, "fp32", {}),
    (4, 4, 4096, "fp32", {"compute_device": "cpu"}),
    (4, 2, 4096, "fp32", {"hbm_mem_bw": 2e9, "inter_host_bw": 5e7, "bwd_compute_multiplier": 1.5}),
]

#: Of plans of all kinds: devices, those of a fast domain, of a host and of a group, batch, precision, constants.
KIND_CASES: list[tuple[int, int, int | None, int | None, int, str, dict[str, Any]]] = [
    (2, 2, None, None, 100, "fp32", {}),
    (8, 8, None, None, 8192, "fp16", {}),
    (8, 8, 2, None, 8192, "fp32", {}),
    (8, 4, None, None, 8192, "fp32", {}),
    (16, 2, None, None, 4096, "fp32", {"compute_device": "cpu"}),
    (16, 4, 2, None, 4096, "fp16", {"hbm_mem_bw": 2e9, "inter_host_bw": 5e7, "bwd_compute_multiplier": 1.5}),
    (8, 4, None, 4, 8192, "fp32", {}),
    (16, 4, 2, 8, 8192, "fp32", {"intra_host_bw": 3e8}),
    (8, 8, None, 2, 4096, "fp32", {}),
]

#: Plans of all kinds for each of these cases.
_PLANS = 2


def draw_task(
    rng: np.random.Generator, devices: int, domain: int, batch_size: int, precision: str, host: int | None = None
) -> ShardingTask:
    """Return a task with wide and narrow tables, some of which few samples look up."""
    widths = [4, 24, 32, 64, 96, 128, 256]
    tables = tuple(
        EmbeddingTable(f"table {n}", int(rng.integers(1, 1000)) * devices, width, round(float(rng.gamma(0.7, 8)), 3))
        for n, width in enumerate(widths)
    )
    topology = Topology(devices, 2**34, fast_domain_size=domain, host_size=host)
    return ShardingTask(tables, topology, batch_size, precision=precision)  # type: ignore[arg-type]


def draw_plan(rng: np.random.Generator, task: ShardingTask) -> ShardingPlan:
    """Return a plan with whole tables, uneven column cuts, and one table cut by rows over all devices."""
    shards = []
    for table in task.tables:
        if table is task.tables[-1]:
            rows = table.num_embeddings // task.num_devices
            cut = [(d * rows, (d + 1) * rows) for d in range(task.num_devices)]
            shards += [Shard(table.name, pair, (0, table.embedding_dim), d) for d, pair in enumerate(cut)]
            continue
        units = table.embedding_dim // 4
        inner = (
            rng.choice(np.arange(1, units), min(int(rng.integers(4)), units - 1), replace=False) if units > 1 else []
        )
        edges = [0, *(4 * int(edge) for edge in sorted(inner)), table.embedding_dim]
        for start, end in itertools.pairwise(edges):
            device = int(rng.integers(task.num_devices))
            shards.append(Shard(table.name, (0, table.num_embeddings), (start, end), device))
    return ShardingPlan.of(task, shards)


def draw_kinds(rng: np.random.Generator, task: ShardingTask, group: int) -> ShardingPlan:
    """Return a plan for groups of devices with every kind that there is for them, in random order."""
    domain = min(task.topology.fast_domain_size, group)
    kinds = ["columns", "rows", "grid", "all"]
    if domain < group:
        kinds += ["columns of a domain", "rows of a domain"]
    order = [kinds[n % len(kinds)] for n in rng.permutation(len(task.tables) - 1)]
    shards = []
    for table, kind in zip(task.tables, ["whole", *order], strict=True):  # the narrowest table cannot be cut
        first = domain * int(rng.integers(group // domain)) if "domain" in kind else 0
        ranks = range(first, first + domain) if "domain" in kind else range(group)
        blocks = [(0, table.embedding_dim)]
        if kind.startswith(("columns", "grid")):
            middle = 4 * int(rng.integers(1, table.embedding_dim // 4))
            blocks = [(0, middle), (middle, table.embedding_dim)]
        for columns in blocks:
            if kind == "grid":
                first = domain * int(rng.integers(group // domain))
                ranks = range(first, first + domain)
            if not kind.startswith(("rows", "grid")):
                place = int(rng.choice(ranks))
                devices = range(task.num_devices) if kind == "all" else range(place, task.num_devices, group)
                shards.append(Shard(table.name, (0, table.num_embeddings), columns, tuple(devices)))
                continue
            rows = table.num_embeddings // len(ranks)
            for n, place in enumerate(ranks):
                holders = tuple(range(place, task.num_devices, group))
                shards.append(Shard(table.name, (n * rows, n * rows + rows), columns, holders))
    return ShardingPlan.of(task, shards, group)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    drawn = []
    for *shape, constants in CASES:
        task = draw_task(rng, *shape)
        drawn.append((task, draw_plan(rng, task), constants))
    for devices, domain, host, group, batch_size, precision, constants in KIND_CASES:
        for _ in range(_PLANS):
            task = draw_task(rng, devices, domain, batch_size, precision, host)
            drawn.append((task, draw_kinds(rng, task, group or devices), constants))
    stored = []
    for task, plan, constants in drawn:
        per_device, rating_ms = estimate(task, plan, PlannerConstants(**constants))
        stored.append(
            {
                "task": task.to_dict(), "plan": plan.to_dict(), "constants": constants,
                "per_device": per_device.tolist(), "rating_ms": rating_ms,
            }
        )  # fmt: skip
    options.path.write_text("\n".join(["[", ",\n".join(map(json.dumps, stored)), "]", ""]), encoding="utf-8")
    print(f"{len(stored)} ratings written to {options.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
