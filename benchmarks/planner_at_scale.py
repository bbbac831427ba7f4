"""A planner's day at scale: `ShardGymPlanner` and TorchRec's `EmbeddingShardingPlanner` on 300 and 1,000 tables.

    python benchmarks/planner_at_scale.py [--tables 300 1000] [--devices 64] [--cap SECONDS]
        [--limit SECONDS] [--page FILE]

Each planner plans the model, on the meta device, in a process of its own: processor seconds, compiling apart, and the
peak of its memory above that before planning. With `--limit`, TorchRec's planner also runs with this `timeout_seconds`:
it first lists and rates all sharding options, and stops proposing plans after so many seconds of wall time. Ratings of
all plans are TorchRec's. A planner that takes longer than `--cap` seconds of processor time is stopped.
"""

import argparse
import dataclasses
import functools
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import numpy as np
from fill_pages import fill
from tabulate import tabulate

from shardgym import ShardingTask, Topology, load_pool, make_cost, make_solver
from shardgym.evaluation.solver import warm_up

#: Samples of a rank.
SAMPLES = 512


def main() -> None:
    """Run the benchmark and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--cap", type=int, default=600, metavar="SECONDS", help="limit of a planner's processor time")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="run TorchRec's again with this timeout_seconds")
    parser.add_argument("--page", type=Path, help="Markdown page whose block 'scale' is filled")
    options = parser.parse_args()
    import shardgym.torchrec  # noqa: F401 - processes are forked off, with what was imported and compiled

    warm_up(make_solver("neuroshard_plus"), drawn(2, 2), make_cost("gpu"))
    rows = []
    for tables in options.tables:
        task = drawn(tables, options.devices)
        planners: dict[str, Callable[[ShardingTask], Any]] = {"EmbeddingShardingPlanner": by_torchrec}
        if options.limit is not None:
            name = f"EmbeddingShardingPlanner, proposals for {options.limit:g} s"
            planners[name] = functools.partial(by_torchrec, limit_s=options.limit)
        planners["ShardGymPlanner"] = by_shardgym
        for name, plan in planners.items():
            found = in_process(functools.partial(measured, plan, task), options.cap)
            rows.append({"tables": tables, "devices": options.devices, "planner": name, **found})
    if options.page is not None:
        fill(options.page, "scale", rows, floatfmt=".2f")
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


def drawn(tables: int, devices: int) -> ShardingTask:
    """Return tables of the synthetic pools, twice if need be, with widths of 32 to 192, on servers of eight H100."""
    pool = [*load_pool("synthetic-2021"), *load_pool("synthetic-2022")]
    rng = np.random.default_rng(tables)
    chosen = tuple(
        dataclasses.replace(pool[n], name=f"t{number}", embedding_dim=int(rng.choice([32, 64, 96, 128, 192])))
        for number, n in enumerate(rng.integers(0, len(pool), tables))
    )
    return ShardingTask(chosen, Topology.preset("dgx-h100", devices, 2**40), SAMPLES * devices)


def constraints_of(task: ShardingTask) -> dict[str, Any]:
    """Return what both planners know of ids, as TorchRec's `ParameterConstraints`."""
    from torchrec.distributed.planner import ParameterConstraints

    return {table.name: ParameterConstraints(pooling_factors=[table.pooling_factor]) for table in task.tables}


def by_torchrec(task: ShardingTask, limit_s: float | None = None) -> Any:
    """Return TorchRec's plan, with its defaults but for the time that it makes proposals."""
    from torchrec.distributed.planner import EmbeddingShardingPlanner
    from torchrec.distributed.planner import Topology as TorchRecTopology
    from torchrec.distributed.sharding_plan import get_default_sharders

    from shardgym.torchrec import model_from_task

    topology = TorchRecTopology(
        world_size=task.num_devices,
        compute_device="cuda",
        local_world_size=task.topology.devices_per_host,
        hbm_cap=task.topology.memory_bytes[0],
    )
    planner = EmbeddingShardingPlanner(
        topology=topology, batch_size=SAMPLES, constraints=constraints_of(task), timeout_seconds=limit_s
    )
    return planner.plan(model_from_task(task), get_default_sharders())


def by_shardgym(task: ShardingTask) -> Any:
    """Return our plan, with defaults."""
    from shardgym.torchrec import ShardGymPlanner, model_from_task

    return ShardGymPlanner(task.topology, SAMPLES, constraints_of(task)).plan(model_from_task(task))


def measured(plan: Callable[[ShardingTask], Any], task: ShardingTask) -> dict[str, Any]:
    """Return seconds and MiB of a plan, and TorchRec's rating of it in ms; run in a process of its own."""
    from shardgym.torchrec import from_torchrec, model_from_task, task_from_model

    make_cost("gpu").additive()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, wall = time.process_time(), time.monotonic()
    found = plan(task)
    figures = {"cpu s": time.process_time() - start, "wall s": time.monotonic() - wall}
    figures["MiB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    told = task_from_model(
        model_from_task(task), task.topology, task.batch_size,
        pooling_factors={table.name: table.pooling_factor for table in task.tables},
    )  # fmt: skip
    figures["rating ms"] = make_cost("torchrec_rating").evaluate(told, [from_torchrec(found, told)])[0].total_ms
    return figures


def in_process(work: Callable[[], dict[str, Any]], cap_s: int) -> dict[str, Any]:
    """Return what work in a process of its own returns, or that it was stopped after so much processor time."""
    limit = resource.RLIMIT_CPU, (cap_s, cap_s + 1)
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(1, context, resource.setrlimit, limit) as pool:
            return pool.submit(work).result()
    except BrokenProcessPool:
        return {"stopped": f"over {cap_s} s"}


if __name__ == "__main__":
    main()
