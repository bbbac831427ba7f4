"""How well cost models agree with real training steps: the same plans as complete steps and by each model.

    sudo python benchmarks/validity.py --out DIR [--minutes N] [--tasks SUITE/INDEX ...] [--plans N] [--links MBIT]
    python benchmarks/validity.py --out DIR --report [--json]

Real steps come from `benchmarks/real_step.py`, a program of its own. All tasks are put on two devices, or on as many
as --devices says, with a link of --links each between network namespaces. Plans of a task: random, greedy and searched
ones, the best with some or all tables cut into halves, and neighbours of the best: half of them within a tenth by the
oracle, the others evenly up to twice its cost. Plans that no run can tell apart would say nothing about a cost.

The study runs in two passes; each takes every task's plans through two launches of the real step and two evaluations of
the measured cost, with exchanges measured and modelled. Passes are the halves whose agreement limits what any cost can
reach. Whatever is done is kept in DIR, so a run that was stopped, or that reached --minutes, goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import real_step
from scipy.stats import kendalltau
from tabulate import tabulate

from shardgym import PlanCost, ShardingPlan, ShardingTask, Topology, load_suite, make_cost, make_solver
from shardgym.arrays import Floats
from shardgym.costs.fbgemm import namespaces
from shardgym.errors import InfeasiblePlanError
from shardgym.files import write_whole

TASKS = ("quick-v1/0", "quick-v1/1", "quick-v1/3", "quick-v1/8", "dlrm4-v1/14", "dlrm4-v1/1")
PREDICTED: dict[str, tuple[str, dict[str, Any]]] = {
    "simulator": ("simulator", {}),
    "simulator, judge": ("simulator", {"role": "judge"}),
    "roofline": ("roofline", {}),
}
#: How the measured cost comes by exchanges.
MEASURED = ("measured", "modelled")
GREEDY = ("lpt", "size_greedy", "dim_greedy")
SEARCHED = ("neuroshard", "neuroshard_plus", "column_greedy")
RESULTS = "results.json"
PASSES = 2
#: Launches of the real step in a pass: each has pages and ids of its own.
LAUNCHES = 2
#: Good neighbours are at most so much costlier than the best plan, by the oracle, and the other ones so much.
_GOOD = 1.1
_WORSE = 2.0
_TRIES = 400
_UNIT = 4
#: Fewer plans have no ranking worth the name.
_LEAST_PLANS = 3


def main() -> None:
    """Go on with the study, or report on what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--minutes", type=float, default=25.0, help="start nothing after so many (%(default)s)")
    parser.add_argument("--tasks", nargs="+", default=TASKS, metavar="SUITE/INDEX", help="(%(default)s)")
    parser.add_argument("--plans", type=int, default=14, help="of each task (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="of each evaluation of fbgemm (%(default)s)")
    parser.add_argument("--real-rounds", type=int, default=10, help="of each launch of the real step (%(default)s)")
    parser.add_argument("--links", type=int, default=1000, help="Mbit/s of the link of each device (%(default)s)")
    parser.add_argument("--ordinary", action="store_true", help="real steps without real-time priority")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--devices", type=int, default=2, help="of every task (%(default)s)")
    given = parser.parse_args()
    if not given.report and (reason := namespaces.why_not()):
        parser.error(reason)
    deadline = time.monotonic() + 60 * given.minutes
    if not given.report:
        for number, name in enumerate(given.tasks):
            prepare(given.out / f"task-{number}", name, given.plans, given.devices, given.links)
        study(given.out, units(given.out, given.rounds, given.real_rounds, real_time=not given.ordinary), deadline)
    rows = report(given.out)
    print(
        json.dumps(rows, indent=2) if given.json else tabulate(rows, headers="keys", floatfmt=".2f", tablefmt="github")
    )


def prepare(folder: Path, name: str, count: int, devices: int, links: int) -> None:
    """Write a task on so many devices and its plans; leaves a folder alone that has them."""
    if (folder / "plans.json").exists():
        return
    suite, index = name.split("/")
    task = load_suite(suite)[int(index)]
    memory = (task.topology.total_memory_bytes // devices,) * devices
    rate = links * 1e6 / 8
    topology = Topology(devices, memory, interconnect=f"{links} Mbit/s", intra_bandwidth=rate, intra_latency_ms=0.0)
    task = dataclasses.replace(task, topology=topology)
    plans = choose_plans(task, count)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "task.json", task.to_json())
    for number, (_, plan) in enumerate(plans):
        write_whole(folder / f"plan-{number}.json", plan.to_json())
    kinds = [kind for kind, _ in plans]
    write_whole(folder / "plans.json", json.dumps({"task": name, "kinds": kinds, "links": links}))
    print(f"{name}: {', '.join(kinds)}", file=sys.stderr, flush=True)


def choose_plans(task: ShardingTask, count: int) -> list[tuple[str, ShardingPlan]]:
    """Return plans with their kinds: as many neighbours of the best as there is room for, others as far as distinct."""
    oracle = make_cost("simulator")
    found: dict[str, tuple[str, ShardingPlan]] = {}

    def add(kind: str, plan: ShardingPlan) -> None:
        if not fits(plan, task):
            return
        devices = sorted(sorted((s.table, s.rows, s.num_columns) for s in plan.on(d)) for d in range(task.num_devices))
        found.setdefault(repr(devices), (kind, plan))

    for name in SEARCHED + GREEDY:
        try:
            add("searched" if name in SEARCHED else "greedy", make_solver(name).solve(task, oracle, seed=0))
        except InfeasiblePlanError:
            continue
    best = min((plan for _, plan in found.values()), key=lambda plan: oracle.evaluate(task, [plan])[0].total_ms)
    add("cut", cut(best, len(best.shards), task.num_devices))
    add("cut", cut(best, len(best.shards) // 3, task.num_devices))
    add("random", make_solver("random").solve(task, oracle, seed=0))
    found = dict(list(found.items())[:count])
    rng = np.random.default_rng(0)
    neighbours = [plan for plan in (perturbed(best, task.num_devices, rng) for _ in range(_TRIES)) if fits(plan, task)]
    totals = np.array([cost.total_ms for cost in oracle.evaluate(task, neighbours)])
    ratios = totals / oracle.evaluate(task, [best])[0].total_ms
    missing = count - len(found)
    for kind, low, high, wanted in (
        ("neighbour", 1.0, _GOOD, missing // 2), ("worse neighbour", _GOOD, _WORSE, missing - missing // 2),
    ):  # fmt: skip
        most = len(found) + wanted
        inside = [n for n in np.argsort(ratios) if low <= ratios[n] < high]
        for n in [*inside[:: max(1, len(inside) // (wanted + 1))], *inside]:  # spaced ones first
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


def study(out: Path, units: Iterable[tuple[str, Callable[[], Any]]], deadline: float) -> None:
    """Do what is left of a study, the units of which have names, until the deadline on the monotonic clock."""
    done = results(out)
    for unit, run in units:
        if unit in done:
            continue
        if time.monotonic() > deadline:
            print("the time is over; the same command goes on", file=sys.stderr)
            return
        begin = time.monotonic()
        done[unit] = run()
        write_whole(out / RESULTS, json.dumps(done))
        print(f"{unit}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def results(out: Path) -> dict[str, Any]:
    """Return what has been done, by unit."""
    path = out / RESULTS
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return done


def units(
    out: Path, rounds: int, real_rounds: int, *, real_time: bool
) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Yield the parts of the study in order, named TASK/WHAT/NUMBER; each gives ms, or the whole cost, by plan."""
    folders = sorted(out.glob("task-*"))
    for turn in range(PASSES):
        for folder in folders:
            for launch in range(LAUNCHES * turn, LAUNCHES * (turn + 1)):
                yield f"{folder.name}/real/{launch}", lambda f=folder, n=launch: real_ms(f, real_rounds, n, real_time)
                if launch == LAUNCHES * turn:  # between the launches, so that drift hits all alike
                    for comm in MEASURED:
                        unit = f"{folder.name}/fbgemm {comm}/{turn}"
                        yield unit, lambda f=folder, c=comm, n=turn: measured_costs(f, rounds, c, n)


def real_ms(folder: Path, rounds: int, launch: int, real_time: bool) -> list[float]:
    """Return the median over rounds of each plan's median step in one launch: other programs' bursts do not count."""
    chosen, plans = read_plans(folder)
    effort = {"rounds": rounds, "steps": 6, "warmups": 2, "seed": launch, "real_time": real_time}
    times = real_step.run(folder / "task.json", plans, **effort, links=chosen["links"])
    return [statistics.median(map(statistics.median, by_round)) for by_round in times]


def measured_costs(folder: Path, rounds: int, comm: str, turn: int) -> list[dict[str, Any]]:
    """Return the measured cost of each plan as a record, by new processes."""
    _, plans = read_plans(folder)
    with make_cost("fbgemm", rounds=max(2, rounds), seed=turn, comm=comm) as cost:
        costs = cost.evaluate(ShardingTask.load(folder / "task.json"), [ShardingPlan.load(path) for path in plans])
    for plan_cost in costs:
        if plan_cost.reason is not None:
            raise SystemExit(f"{folder}: {plan_cost.reason}")
    return [plan_cost.to_dict() for plan_cost in costs]


def read_plans(folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """Return what `prepare` noted, and the files of the plans in order."""
    chosen = json.loads((folder / "plans.json").read_text())
    return chosen, [folder / f"plan-{n}.json" for n in range(len(chosen["kinds"]))]


def report(out: Path) -> list[dict[str, Any]]:
    """Return a row per cost and choice of plans: means over the tasks whose two passes are complete."""
    done = results(out)
    rows: list[dict[str, Any]] = []
    for only_good in (False, True):
        by_cost: dict[str, list[dict[str, float]]] = {}
        for folder in sorted(out.glob("task-*")):
            halves = halves_of(done, folder.name)
            if halves is None:
                continue
            kinds, paths = read_plans(folder)
            chosen = np.array([not only_good or kind in ("searched", "neighbour") for kind in kinds["kinds"]])
            if chosen.sum() < _LEAST_PLANS:
                continue
            task = ShardingTask.load(folder / "task.json")
            plans = [ShardingPlan.load(path) for path in paths]
            halves |= predicted_totals(PREDICTED, task, plans)
            for name, own in halves.items():
                by_cost.setdefault(name, []).append(agreement(own[:, chosen], halves["real"][:, chosen]))
        for name, found in by_cost.items():
            means = {key: float(np.mean([row[key] for row in found])) for key in found[0]}
            plans_named = "good" if only_good else "all"
            rows.append({"plans": plans_named, "cost": name, "tasks": len(found), **means})
    return rows


def halves_of(done: dict[str, Any], task: str) -> dict[str, Floats] | None:
    """Return the ms of every plan in both passes, shape (2, plans), by what was run; None while a part is missing."""
    names = {f"{task}/real/{n}" for n in range(PASSES * LAUNCHES)}
    names |= {f"{task}/fbgemm {comm}/{n}" for comm in MEASURED for n in range(PASSES)}
    if not names <= done.keys():
        return None
    real = np.array([done[f"{task}/real/{n}"] for n in range(PASSES * LAUNCHES)])
    halves: dict[str, Floats] = {"real": real.reshape(PASSES, LAUNCHES, -1).mean(axis=1)}
    return halves | measured_totals(stored_costs(done, f"{task}/"))


def stored_costs(done: dict[str, Any], prefix: str = "") -> dict[str, list[list[PlanCost]]]:
    """Return the measured cost of every plan by exchange and pass, from what was done; units begin with `prefix`."""
    return {
        comm: [[PlanCost.from_dict(c) for c in done[f"{prefix}fbgemm {comm}/{n}"]] for n in range(PASSES)]
        for comm in MEASURED
    }


def measured_totals(costs: dict[str, list[list[PlanCost]]]) -> dict[str, Floats]:
    """Return the ms of every plan in both passes, shape (2, plans), by measured costs and what is left of them.

    Args:
        costs: as `stored_costs` returns them.
    """
    totals = {
        f"fbgemm, exchanges {comm}": np.array([[cost.total_ms for cost in half] for half in passes])
        for comm, passes in costs.items()
    }
    passes = costs["measured"]
    totals["without ids"] = np.array([[c.per_device[:, 1:].sum(axis=1).max() for c in half] for half in passes])
    totals["compute alone"] = np.array([[c.per_device[:, [1, 4]].sum(axis=1).max() for c in half] for half in passes])
    return totals


def predicted_totals(
    models: dict[str, tuple[str, dict[str, Any]]], task: ShardingTask, plans: list[ShardingPlan]
) -> dict[str, Floats]:
    """Return the ms of every plan by cost models, with settings, that say the same in both passes: (2, plans) each."""
    costs = {name: make_cost(model, **settings).evaluate(task, plans) for name, (model, settings) in models.items()}
    return {name: np.tile([cost.total_ms for cost in of_plans], (PASSES, 1)) for name, of_plans in costs.items()}


def agreement(own: Floats, real: Floats) -> dict[str, float]:
    """Compare a cost with real steps; both in ms by pass and plan, shape (2, plans).

    Returns:
        tau: Kendall's tau of the means over passes; for the real step itself, of its two halves.
        tau_repeat: of the cost's own two passes.
        tau_half: mean tau of the cost's passes and the real step's halves, the fair comparison with the limit.
        regret: what the favourite takes above the best, by real steps.
        slope: relative differences of the cost per relative difference of real steps (least squares), 1 if right.
        level: mean of the cost over mean of the real step.
    """
    is_real = own is real or np.array_equal(own, real)
    mean = own.mean(axis=0)
    truth = real.mean(axis=0)
    repeat = tau(own[0], own[1])
    if is_real:  # each half against the other one
        favourites = [real[1 - n][real[n].argmin()] / real[1 - n].min() - 1 for n in range(PASSES)]
        slopes = [slope(real[n], real[1 - n]) for n in range(PASSES)]
        regret = float(np.mean(favourites))
        steepness = float(np.mean(slopes))
    else:
        regret = float(truth[mean.argmin()] / truth.min() - 1)
        steepness = slope(mean, truth)
    return {
        "tau": repeat if is_real else tau(mean, truth),
        "tau_repeat": repeat,
        "tau_half": repeat if is_real else float(np.mean([tau(a, b) for a in own for b in real])),
        "regret": regret,
        "slope": steepness,
        "level": float(mean.mean() / truth.mean()),
        "spread": float(mean.max() / mean.min()),
    }


def tau(a: Floats, b: Floats) -> float:
    """Return Kendall's tau-b; 0 where one side has no order."""
    found = float(kendalltau(a, b).statistic)
    return found if np.isfinite(found) else 0.0


def slope(own: Floats, real: Floats) -> float:
    """Return the least-squares slope of relative costs over relative real times."""
    relative = real / real.mean() - 1
    return float((own / own.mean() - 1) @ relative / (relative @ relative)) if relative.any() else 0.0


if __name__ == "__main__":
    main()
