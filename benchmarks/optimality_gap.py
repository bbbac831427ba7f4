"""How near to the best plans are, proven: 300 tables on 64 H100s, by `roofline` and by `gpu`.

    python benchmarks/optimality_gap.py [--devices N] [--target-gap SHARE]

`milp` bounds every plan of its kinds from below, by each cost. A gap is the cost of a plan over this bound, minus 1: of
every solver's plan by every cost, whichever it was planned by. Seconds are of the processor, on one thread, after
compiling.
"""

import argparse
import os
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from drawn_tasks import model_with_300_tables
from tabulate import tabulate

from baselines.milp.solver import Milp
from shardgym import ShardingPlan, ShardingTask, make_cost, make_solver
from shardgym.evaluation.solver import warm_up

#: Held against the same bound.
OTHERS = ("lpt", "hierarchical", "row_wise", "neuroshard_plus")


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=64, help="H100s, eight to a server (%(default)s)")
    parser.add_argument("--target-gap", type=float, default=0.02, help="that ends the search (%(default)s)")
    given = parser.parse_args()
    rows = gaps(model_with_300_tables(given.devices), given.target_gap)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))


def gaps(task: ShardingTask, target_gap: float) -> list[dict[str, Any]]:
    """Return a row per cost and solver."""
    costs = {name: make_cost(name) for name in ("roofline", "gpu")}
    bounds: dict[str, float | None] = {}
    plans: dict[tuple[str, str], tuple[ShardingPlan, float]] = {}
    for name, cost in costs.items():
        for solver_name in ("milp", *OTHERS):
            solver = Milp(target_gap) if solver_name == "milp" else make_solver(solver_name)
            warm_up(solver, task, cost)
            start = time.process_time()
            plan = solver.solve(task, cost, seed=0)
            plans[name, solver_name] = plan, time.process_time() - start
            if isinstance(solver, Milp):
                bounds[name] = solver.lower_bound_ms
    rows = []
    for (name, solver_name), (plan, seconds) in plans.items():
        found = {other: cost.evaluate(task, [plan])[0].total_ms for other, cost in costs.items()}
        shares = {f"gap by {other}": found[other] / bound - 1 for other, bound in bounds.items() if bound is not None}
        rows.append({"planned by": name, "solver": solver_name, "ms": found[name], **shares, "seconds": seconds})
    return rows


if __name__ == "__main__":
    main()
