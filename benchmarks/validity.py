"""How well cost models agree with real training steps: the same plans as complete steps and by each model.

    sudo python benchmarks/validity.py --out DIR [--minutes N] [--tasks SUITE/INDEX ...] [--links MBIT] [--torchrec]
    python benchmarks/validity.py --out DIR --report [--json]

Real steps come from `benchmarks/real_step.py`, and with --torchrec from TorchRec as well. Tasks
are put on two devices, or on as many as --devices says, with a link of --links each between network namespaces: what
the measured boards have. The measured cost is made as for the boards.

Plans of a task: searched, greedy and random ones, the best with some or all tables cut into halves, and neighbours of
these: half of them within a tenth of the best by the oracle, the others evenly up to twice its cost. Plans that no run
can tell apart would say nothing about a cost.

The study runs in two passes; each takes every task's plans through two launches of the real step and one evaluation of
the measured cost. Passes are the halves whose agreement limits what any cost can reach. DIR has a file for each task
with its plans and all that was measured, so a run that was stopped, or that reached --minutes, goes on where it was,
and calls with other tasks, devices or links add to it.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import real_step
from validity_report import ENDING, PASSES, load, print_report, save

from shardgym import ShardingPlan, ShardingTask, Topology, load_suite, make_cost, make_solver
from shardgym.arrays import Floats
from shardgym.costs.fbgemm import namespaces
from shardgym.errors import InfeasiblePlanError, NoFeasiblePlanError

SUITES = ("dlrm4-v2", "tight4-v2", "hetero4-v2", "dlrm8-v2", "wide8-v2", "tight8-v2")
#: Of a suite's first tasks, those with smaller tables are looked at: all plans of a task are in memory at once.
_FIRST = 12
_MOST_BYTES = 10**9
GREEDY = ("lpt", "dim_greedy")
SEARCHED = ("neuroshard", "neuroshard_plus", "column_greedy")
#: Launches of the real step in a pass: each has pages and ids of its own.
LAUNCHES = 2
#: Of a launch of the real step.
REAL_EFFORT = {"rounds": 4, "steps": 4, "warmups": 1}
#: Of the measured cost, as for the boards.
BOARD_EFFORT = {"rounds": 3, "warmups": 1}
#: Steps of TorchRec's that are timed in a round, after its warm-up; rounds of a launch.
_TORCHREC_STEPS = 3
_TORCHREC_ROUNDS = 2
#: Good neighbours are at most so much costlier than the best plan, by the oracle, and the other ones so much.
_GOOD = 1.1
_WORSE = 2.0
_TRIES = 400
_UNIT = 4


def main() -> None:
    """Go on with the study, or report on what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--minutes", type=float, default=25.0, help="start nothing after so many (%(default)s)")
    parser.add_argument("--tasks", nargs="+", metavar="SUITE/INDEX", help="(two of each measured suite)")
    parser.add_argument("--plans", type=int, default=14, help="of each task (%(default)s)")
    parser.add_argument("--links", type=int, default=2000, help="Mbit/s of the link of each device (%(default)s)")
    parser.add_argument("--devices", type=int, default=2, help="of every task (%(default)s)")
    parser.add_argument("--torchrec", action="store_true", help="TorchRec's steps, too, once in each pass")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.report:
        if reason := namespaces.why_not():
            parser.error(reason)
        deadline = time.monotonic() + 60 * given.minutes
        names = given.tasks or chosen_tasks()
        paths = [prepare(given.out, name, given.plans, given.devices, given.links) for name in names]
        study(paths, deadline, torchrec=given.torchrec)
    print_report(given.out, as_json=given.json)


def chosen_tasks() -> list[str]:
    """Return names of two tasks of each suite: those with the least and with the lower median lookups per sample."""
    names = []
    for suite in SUITES:
        tasks = load_suite(suite)
        small = [n for n in range(_FIRST) if tasks[n].total_bytes <= _MOST_BYTES]
        small.sort(key=lambda n: sum(table.pooling_factor for table in tasks[n].tables))
        names += [f"{suite}/{small[0]}", f"{suite}/{small[(len(small) - 1) // 2]}"]
    return names


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
    content = {
        "name": name,
        "task": task.to_dict(),
        "kinds": [kind for kind, _ in plans],
        "plans": [plan.to_dict() for _, plan in plans],
        "done": {},
    }
    save(path, content)
    print(f"{name} on {devices}: {', '.join(kind for kind, _ in plans)}", file=sys.stderr, flush=True)
    return path


def choose_plans(task: ShardingTask, count: int) -> list[tuple[str, ShardingPlan]]:
    """Return plans with their kinds, the best by the oracle first: as many neighbours as there is room for.

    Neighbours with cuts come first: on a task with room to spare nothing else would have them.
    """
    oracle = make_cost("simulator")
    found: dict[str, tuple[str, ShardingPlan]] = {}

    def add(kind: str, plan: ShardingPlan) -> None:
        if not fits(plan, task):
            return
        devices = sorted(sorted((s.table, s.rows, s.num_columns) for s in plan.on(d)) for d in range(task.num_devices))
        found.setdefault(repr(devices), (kind, plan))

    solved: list[tuple[str, ShardingPlan]] = []
    for name in (*SEARCHED, *GREEDY, "random"):
        try:
            solved.append((name, make_solver(name).solve(task, oracle, seed=0)))
        except NoFeasiblePlanError:
            continue
    totals = [cost.total_ms for cost in oracle.evaluate(task, [plan for _, plan in solved])]
    best = solved[int(np.argmin(totals))][1]
    add("best", best)
    halves = [cut(best, len(best.shards), task.num_devices), cut(best, len(best.shards) // 3, task.num_devices)]
    add("all cut", halves[0])
    add("third cut", halves[1])
    for name, plan in solved:
        add(name, plan)
    found = dict(list(found.items())[:count])
    rng = np.random.default_rng(0)
    bases = [best, *(plan for plan in halves if fits(plan, task))]
    tried = [perturbed(bases[n % len(bases)], task.num_devices, rng) for n in range(_TRIES)]
    neighbours = [plan for plan in tried if fits(plan, task)]
    if not neighbours:
        return list(found.values())
    totals = [cost.total_ms for cost in oracle.evaluate(task, neighbours)]
    ratios = np.array(totals) / oracle.evaluate(task, [best])[0].total_ms
    missing = count - len(found)
    for kind, low, high, wanted in (
        ("neighbour", 1.0, _GOOD, missing // 2), ("worse neighbour", _GOOD, _WORSE, missing - missing // 2),
    ):  # fmt: skip
        most = len(found) + wanted
        inside = [n for n in np.argsort(ratios) if low <= ratios[n] < high]
        with_cuts = [n for n in inside if len(neighbours[n].shards) > task.num_tables]
        for n in [*with_cuts[:: max(1, len(with_cuts) // (wanted + 1))], *with_cuts, *inside]:  # spaced ones first
            if len(found) < most:
                add(kind, neighbours[n])
    return list(found.values())


def fits(plan: ShardingPlan, task: ShardingTask) -> bool:
    """Say whether a plan can be executed."""
    try:
        plan.validate(task)
    except InfeasiblePlanError:
        return False
    return True


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
            shards.append(dataclasses.replace(shard, columns=(first, middle)))
            shards.append(
                dataclasses.replace(shard, columns=(middle, last), devices=((shard.devices[0] + 1) % devices,))
            )
    return dataclasses.replace(plan, shards=tuple(shards))


def perturbed(plan: ShardingPlan, devices: int, rng: np.random.Generator) -> ShardingPlan:
    """Return the plan with one to six shards moved to other devices."""
    shards = list(plan.shards)
    for n in rng.choice(len(shards), size=min(len(shards), int(rng.integers(1, 7))), replace=False):
        device = (shards[n].devices[0] + int(rng.integers(1, devices))) % devices
        shards[n] = dataclasses.replace(shards[n], devices=(device,))
    return dataclasses.replace(plan, shards=tuple(shards))


def study(paths: Sequence[Path], deadline: float, *, torchrec: bool) -> None:
    """Do what is left of some tasks, pass by pass, until the deadline on the monotonic clock."""
    for turn in range(PASSES):
        for path in paths:
            for unit, run in units(path, turn, torchrec=torchrec):
                content = load(path)
                if unit in content["done"]:
                    continue
                if time.monotonic() > deadline:
                    print("the time is over; the same command goes on", file=sys.stderr)
                    return
                begin = time.monotonic()
                content["done"][unit] = run()
                save(path, content)
                name = path.name.removesuffix(ENDING)
                print(f"{name}, {unit}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def units(path: Path, turn: int, *, torchrec: bool) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Yield the parts of a pass over a task in order, named WHAT/NUMBER; each gives ms, or the whole cost, by plan."""
    content = load(path)
    task = ShardingTask.from_dict(content["task"])
    plans = [ShardingPlan.from_dict(plan) for plan in content["plans"]]
    first, *others = range(LAUNCHES * turn, LAUNCHES * (turn + 1))
    yield f"real/{first}", lambda: real_ms(task, plans, first)
    yield f"fbgemm/{turn}", lambda: measured_costs(task, plans, turn)  # between the launches: drift hits all alike
    for launch in others:
        yield f"real/{launch}", lambda n=launch: real_ms(task, plans, n)
    if torchrec:
        yield f"torchrec/{turn}", lambda: torchrec_ms(task, plans, turn)


def real_ms(task: ShardingTask, plans: list[ShardingPlan], launch: int) -> list[float]:
    """Return the median over rounds of each plan's median step in one launch: other programs' bursts do not count."""
    times = real_step.real_ms(task, plans, **REAL_EFFORT, seed=launch)
    return [statistics.median(map(statistics.median, by_round)) for by_round in times]


def measured_costs(task: ShardingTask, plans: Sequence[ShardingPlan], turn: int) -> list[dict[str, Any]]:
    """Return the measured cost of each plan as a record, by new processes."""
    with make_cost("fbgemm", **BOARD_EFFORT, seed=turn, comm="measured") as cost:
        costs = cost.evaluate(task, plans)
    for plan_cost in costs:
        if plan_cost.reason is not None:
            raise SystemExit(plan_cost.reason)
    return [plan_cost.to_dict() for plan_cost in costs]


def torchrec_ms(task: ShardingTask, plans: Sequence[ShardingPlan], launch: int) -> list[float]:
    """Return the same as `real_ms` by TorchRec, without the dense part of its model."""
    import torchrec_step

    wall: Floats = torchrec_step.real_ms(task, list(plans), _TORCHREC_ROUNDS, _TORCHREC_STEPS, launch)
    return (wall[:-1] - wall[-1]).tolist()


if __name__ == "__main__":
    main()
