"""What engines add to runs, and what several workers bring: `python benchmarks/engines.py`, with Ray `--ray`.

A run of a solver that works for a second of its process's time on each task, on each engine. A task's time is that of
the tasks after the first ones, so what an engine takes to start is apart. On a machine with fewer free cores than
workers, two workers bring less than twice as much.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from shardgym import ShardingPlan, ShardingTask, evaluate, load_suite, make_solver
from shardgym.costs.fbgemm.machine import cpu_tag
from shardgym.engines import make_engine


class Works:
    """Solves as `lpt` does, after a second of work."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self._solver = make_solver("lpt")

    def solve(self, task: ShardingTask, oracle, *, seed: int = 0) -> ShardingPlan:
        """Return a plan."""
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        return self._solver.solve(task, oracle, seed=seed)


def seconds_of_run(engine: str, workers: int, tasks: int) -> float:
    """Return how long a run of so many tasks takes."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        chosen = make_engine(engine, workers=None if engine == "here" else workers)
        results = evaluate(
            load_suite("dlrm4-v2"), ["engines:Works"], out=folder, judge="roofline", oracle="roofline", limit=tasks,
            engine=chosen,
        )  # fmt: skip
        took = time.perf_counter() - start
    if {result.status for result in results} != {"ok"}:
        raise SystemExit(f"{engine}: {results[0].reason}")
    return took


def main() -> None:
    """Time runs, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=16, help="that count, after two that do not (%(default)s)")
    parser.add_argument("--ray", action="store_true", help="also on a Ray cluster of two nodes, started here")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    cluster = None
    if given.ray:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        os.environ["RAY_ADDRESS"] = cluster.address
    rows = []
    for engine, workers in [("here", 1), ("loky", 1), ("loky", 2), *([("ray", 1), ("ray", 2)] if given.ray else [])]:
        few = seconds_of_run(engine, workers, 2)
        of_task = (seconds_of_run(engine, workers, 2 + given.tasks) - few) / given.tasks
        rows.append({"engine": engine, "workers": workers, "start s": few - 2 * of_task, "s per task": of_task})
    for row in rows:
        row["tasks of here"] = rows[0]["s per task"] / row["s per task"]
        row["overhead"] = row["s per task"] * row["workers"] / rows[0]["s per task"] - 1
    print(f"{cpu_tag()}, load {os.getloadavg()[0]:.1f}\n\n" + tabulate(rows, "keys", "github", floatfmt=".3f"))
    if cluster is not None:
        cluster.shutdown()


if __name__ == "__main__":
    main()
