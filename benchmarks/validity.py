"""How well cost models agree with real training steps: the same plans as TorchRec's steps and by each model.

    sudo python benchmarks/validity.py --out DIR [--minutes N] [--tasks SUITE/INDEX ...] [--links MBIT]
    python benchmarks/validity.py --out DIR --minutes 0       # reports on what there is

Real steps come from `benchmarks/torchrec_step.py`. Tasks are put on two devices, or on as many as --devices says, with
a link of --links each between network namespaces: what the measured boards have. The measured cost is made as for them.

Plans of a task: searched, greedy and random ones, the best with some or all tables cut into halves, and neighbours of
these: half of them within a tenth of the best by the oracle, the others evenly up to twice its cost. Plans that no run
can tell apart would say nothing about a cost.

The study runs in two passes; each takes every task's plans through two launches of the real step and one evaluation of
the measured cost. Passes are the halves whose agreement limits what any cost can reach. DIR has a file for each task
with its plans and all that was measured, so a run that was stopped, or that reached --minutes, resumes where it was,
and calls with other tasks, devices or links add to it.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from validity_report import ENDING, PASSES, load, save, tables_of

from shardgym import ShardingPlan, ShardingTask, Topology, load_suite, make_cost, make_solver
from shardgym.costs.fbgemm import namespaces
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.feasibility import plan_problems

#: Two of each suite with small tables: the ones with the least and with the lower median lookups per sample.
TASKS = (
    "dlrm4-v2/5", "dlrm4-v2/4", "tight4-v2/11", "tight4-v2/5", "hetero4-v2/2", "hetero4-v2/4",
    "dlrm8-v2/3", "dlrm8-v2/5", "wide8-v2/9", "wide8-v2/4", "tight8-v2/6", "tight8-v2/4",
)  # fmt: skip
#: Without cuts by rows, because TorchRec runs only some of them.
SOLVERS: dict[str, dict[str, Any]] = {
    "neuroshard": {}, "neuroshard_plus": {"sharding_types": []}, "column_greedy": {}, "lpt": {}, "dim_greedy": {},
    "random": {},
}  # fmt: skip
#: Launches of the real step in a pass, each with ids of its own, and turns of a plan in each.
LAUNCHES = 2
TURNS = 2
#: Good neighbours are at most so much costlier than the best plan, by the oracle, and the other ones so much.
_GOOD = 1.1
_WORSE = 2.0
_TRIES = 400
_UNIT = 4


def main() -> None:
    """Resume the study, and report on what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--minutes", type=float, default=25.0, help="start nothing after this time (%(default)s)")
    parser.add_argument("--tasks", nargs="+", default=TASKS, metavar="SUITE/INDEX", help="(two of each measured suite)")
    parser.add_argument("--plans", type=int, default=14, help="plans per task (%(default)s)")
    parser.add_argument("--links", type=int, default=2000, help="Mbit/s of the link of each device (%(default)s)")
    parser.add_argument("--devices", type=int, default=2, help="devices per task (%(default)s)")
    given = parser.parse_args()
    if given.minutes:
        if reason := namespaces.why_not():
            parser.error(reason)
        deadline = time.monotonic() + 60 * given.minutes
        study([prepare(given.out, name, given.plans, given.devices, given.links) for name in given.tasks], deadline)
    for title, rows in tables_of(given.out).items():
        print(f"{title}:\n\n{tabulate(rows, headers='keys', tablefmt='github', floatfmt='.2f')}\n")


def prepare(out: Path, name: str, count: int, devices: int, links: int) -> Path:
    """Return the file of a task on so many devices; writes the task and its plans where there is none."""
    suite, index = name.split("/")
    path = out / f"{suite}-{index}-on-{devices}-by-{links}{ENDING}"
    if path.exists():
        return path
    task = load_suite(suite)[int(index)]
    memory = (task.topology.total_memory_bytes // devices,) * devices
    rate = links * 1e6 / 8
    topology = Topology(devices, memory, interconnect=f"{links} Mbit/s", intra_bandwidth=rate, intra_latency_ms=0.0)
    task = dataclasses.replace(task, topology=topology)
    plans = choose_plans(task, count)
    out.mkdir(parents=True, exist_ok=True)
    save(path, {
        "name": name,
        "task": task.to_dict(),
        "kinds": [kind for kind, _ in plans],
        "plans": [plan.to_dict() for _, plan in plans],
        "done": {},
    })  # fmt: skip
    print(f"{name} on {devices}: {', '.join(kind for kind, _ in plans)}", file=sys.stderr, flush=True)
    return path


def choose_plans(task: ShardingTask, count: int) -> list[tuple[str, ShardingPlan]]:
    """Return plans with their kinds, the best by the oracle first: as many neighbours as there is room for.

    Neighbours with cuts come first: on a task with room to spare nothing else would have them.
    """
    oracle = make_cost("simulator")
    found: dict[str, tuple[str, ShardingPlan]] = {}

    def add(kind: str, plan: ShardingPlan) -> None:
        devices = sorted(sorted((s.table, s.rows, s.num_columns) for s in plan.on(d)) for d in range(task.num_devices))
        if not plan_problems(task, plan.shards):
            found.setdefault(repr(devices), (kind, plan))

    solved: list[tuple[str, ShardingPlan]] = []
    for name, settings in SOLVERS.items():
        try:
            solved.append((name, make_solver(name, **settings).solve(task, oracle, seed=0)))
        except NoFeasiblePlanError:
            continue
    totals = [cost.total_ms for cost in oracle.evaluate(task, [plan for _, plan in solved])]
    best = solved[int(np.argmin(totals))][1]
    halves = [cut(best, len(best.shards), task.num_devices), cut(best, len(best.shards) // 3, task.num_devices)]
    for kind, plan in [("best", best), ("all cut", halves[0]), ("third cut", halves[1]), *solved]:
        add(kind, plan)
    found = dict(list(found.items())[:count])
    rng = np.random.default_rng(0)
    bases = [plan for plan in (best, *halves) if not plan_problems(task, plan.shards)]
    tried = [perturbed(bases[n % len(bases)], task.num_devices, rng) for n in range(_TRIES)]
    neighbours = [plan for plan in tried if not plan_problems(task, plan.shards)]
    ratios = np.array([cost.total_ms for cost in oracle.evaluate(task, neighbours)]) / min(totals)
    missing = count - len(found)
    for kind, low, high, most in (
        ("neighbour", 1.0, _GOOD, len(found) + missing // 2), ("worse neighbour", _GOOD, _WORSE, count),
    ):  # fmt: skip
        inside = [n for n in np.argsort(ratios) if low <= ratios[n] < high]
        with_cuts = [n for n in inside if len(neighbours[n].shards) > task.num_tables]
        for n in [*with_cuts[:: len(with_cuts) // count + 1], *with_cuts, *inside]:  # spaced ones first
            if len(found) < most:
                add(kind, neighbours[n])
    return list(found.values())


def cut(plan: ShardingPlan, count: int, devices: int) -> ShardingPlan:
    """Return the plan with its widest shards, at most `count`, cut into halves of columns, one for the next device."""
    widest = sorted(plan.shards, key=lambda shard: -shard.num_columns)[:count]
    shards = [shard for shard in plan.shards if shard not in widest]
    for shard in widest:
        first, last = shard.columns
        middle = first + shard.num_columns // 2 // _UNIT * _UNIT
        if middle == first:
            shards.append(shard)
        else:
            after = (shard.devices[0] + 1) % devices
            shards.append(dataclasses.replace(shard, columns=(first, middle)))
            shards.append(dataclasses.replace(shard, columns=(middle, last), devices=(after,)))
    return dataclasses.replace(plan, shards=tuple(shards))


def perturbed(plan: ShardingPlan, devices: int, rng: np.random.Generator) -> ShardingPlan:
    """Return the plan with one to six shards moved to other devices."""
    shards = list(plan.shards)
    for n in rng.choice(len(shards), size=min(len(shards), int(rng.integers(1, 7))), replace=False):
        device = (shards[n].devices[0] + int(rng.integers(1, devices))) % devices
        shards[n] = dataclasses.replace(shards[n], devices=(device,))
    return dataclasses.replace(plan, shards=tuple(shards))


def study(paths: Sequence[Path], deadline: float) -> None:
    """Finish some tasks, pass by pass, until the deadline on the monotonic clock."""
    for turn, path in itertools.product(range(PASSES), paths):
        content = load(path)
        task = ShardingTask.from_dict(content["task"])
        plans = [ShardingPlan.from_dict(plan) for plan in content["plans"]]
        first, *others = [(f"real/{n}", real_ms, n) for n in range(LAUNCHES * turn, LAUNCHES * (turn + 1))]
        # The measured cost runs between the launches, so that drift affects all alike.
        for unit, run, number in (first, (f"fbgemm/{turn}", fbgemm_ms, turn), *others):
            if unit in content["done"]:
                continue
            if time.monotonic() > deadline:
                print("the time is over; the same command resumes", file=sys.stderr)
                return
            begin = time.monotonic()
            content["done"][unit] = run(task, plans, number)
            save(path, content)
            name = path.name.removesuffix(ENDING)
            print(f"{name}, {unit}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def real_ms(task: ShardingTask, plans: list[ShardingPlan], launch: int) -> list[float]:
    """Return the ms of each plan by TorchRec's steps."""
    import torchrec_step

    found: list[float] = torchrec_step.real_ms(task, plans, TURNS, launch).tolist()
    return found


def fbgemm_ms(task: ShardingTask, plans: Sequence[ShardingPlan], turn: int, **effort: Any) -> list[float]:
    """Return the measured ms of each plan, by new processes; `effort` is that of the boards by default."""
    with make_cost("fbgemm", **effort, seed=turn, comm="measured") as cost:
        costs = cost.evaluate(task, plans)
    for plan_cost in costs:
        if plan_cost.reason is not None:
            raise SystemExit(plan_cost.reason)
    return [plan_cost.total_ms for plan_cost in costs]


if __name__ == "__main__":
    main()
