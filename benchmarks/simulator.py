"""The simulator against the boards that the measured cost of today judged: how it orders the plans of solvers.

    python benchmarks/simulator.py [--write] [--json]
    python benchmarks/simulator.py --second FOLDER       # keep what boards in FOLDER measured of the same plans

Most of these plans are good, so this is what differences between solvers rest on. Printed are, of the weights that
ship, of the roofline, and of another measurement: the mean over tasks of Kendall's tau, and the share of close pairs in
the measured order. Then, of the tasks that were measured twice, by how much the judge's tau is above that of the
second measurement; it passes where the interval of that begins above -0.03, and elsewhere boards say that they are for
screening. Then the same with the compute that was measured, so that exchanges alone are predicted. Plans that a model
refuses are left out for all.

--write keeps the figures of the tasks that were measured twice as `agreement.json` next to the weights, from where
simulated boards print them. The second measurement is another run of the same boards; `second_measurement.csv` keeps
it. Fresh plans are measured by `benchmarks/validity.py`.
"""

import argparse
import csv
import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tabulate import tabulate
from validity_report import close_pairs, tau

from shardgym import ShardingPlan, ShardingTask, make_cost
from shardgym.arrays import Floats
from shardgym.costs.additive import join_phases
from shardgym.costs.base import CostModel
from shardgym.costs.fbgemm.cost import FbgemmCost
from shardgym.costs.links import LOADS
from shardgym.costs.plan_cost import COMPUTE_COLUMNS, PlanCost
from shardgym.costs.simulator.model_card import AGREEMENT, ALLOWANCE, REPEAT, Agreement, ModelAgreement
from shardgym.costs.simulator.predictor import Predictor
from shardgym.costs.simulator.weights import find_weights, load_weights
from shardgym.leaderboard import Board, load_boards
from shardgym.machine import utc_now

_ALL = "all of these"
LEADERBOARDS = Path(__file__).parents[1] / "leaderboards"
SECOND = Path(__file__).with_name("second_measurement.csv")
_RESAMPLES = 2000
#: Fewer plans of a task have no meaningful order.
_LEAST_PLANS = 3


class Measured(NamedTuple):
    """A task of a board."""

    suite: str
    hardware: str
    task: ShardingTask
    #: Of its distinct plans; and their totals in ms when they were measured again, {} if they were not.
    costs: dict[ShardingPlan, PlanCost]
    again_ms: dict[ShardingPlan, float]


def main() -> None:
    """Compare, or measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the figures next to the weights")
    parser.add_argument("--second", type=Path, metavar="FOLDER", help="boards that were measured again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.second is not None:
        keep_second(options.second)
    tasks = measured_tasks()
    models = {
        "oracle": make_cost("simulator"),
        "roofline": make_cost("roofline"),
        "judge": make_cost("simulator", role="judge"),
    }
    tables = {
        "agreement": on_boards(tasks, models),
        "gate": gate(tasks, models["judge"]),
        "gate, compute as measured": gate(tasks, MeasuredCompute(tasks)),
    }
    if options.write:
        keep(tasks, models)
    if options.json:
        print(json.dumps(tables, indent=2))
    else:
        for title, rows in tables.items():
            print(f"{title}\n\n{tabulate(rows, headers='keys', floatfmt='.3f')}\n")


def measured_tasks() -> list[Measured]:
    """Return the tasks of all boards of today's measured cost."""
    again: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for row in _second_rows():
        again[row["suite"], int(row["task"])][row["plan"]] = float(row["total_ms"])
    found = []
    for board in load_boards(sorted(LEADERBOARDS.glob("*-fbgemm"))):
        if (board.run.judge, board.run.judge_version) != ("fbgemm", FbgemmCost.version):
            continue
        for number, costs in costs_of_plans(board).items():
            task = board.task(number)
            if task is not None:
                twice = again[board.run.suite, number]
                again_ms = {plan: twice[plan.digest] for plan in costs if plan.digest in twice}
                found.append(Measured(board.run.suite, board.run.hardware, task, costs, again_ms))
    return found


def keep_second(folder: Path) -> None:
    """Keep the totals of all plans of the measured boards in a folder; those of other suites stay."""
    rows: list[dict[str, Any]] = [
        {"suite": board.run.suite, "task": number, "plan": plan.digest}
        | {"total_ms": f"{cost.total_ms:.5f}", "pace": f"{cost.pace:.4f}"}
        for board in load_boards([folder])
        if (board.run.judge, board.run.judge_version) == ("fbgemm", FbgemmCost.version)
        for number, costs in sorted(costs_of_plans(board).items())
        for plan, cost in costs.items()
    ]
    suites = {row["suite"] for row in rows}
    rows += [row for row in _second_rows() if row["suite"] not in suites]
    with SECOND.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _second_rows() -> list[dict[str, str]]:
    with SECOND.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def on_boards(tasks: list[Measured], models: Mapping[str, CostModel]) -> list[dict[str, Any]]:
    """Return how models, and a second measurement, rank the distinct plans of tasks, by suite and of all."""
    taus: dict[tuple[str, str], list[float]] = defaultdict(list)
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)

    def add(name: str, suite: str, ms: Floats, real: Floats) -> None:
        for of in (suite, _ALL):
            taus[name, of].append(tau(ms, real))
            right[name, of] += close_pairs(ms, real)

    for measured in tasks:
        guesses = [
            [c.total_ms for c in model.evaluate(measured.task, list(measured.costs))] for model in models.values()
        ]
        # All models are compared on the same plans, those that all of them price.
        priced = np.isfinite(guesses).all(axis=0)
        if priced.sum() < _LEAST_PLANS:
            continue
        real = np.array([cost.total_ms for cost in measured.costs.values()])
        for name, guess in zip(models, np.array(guesses), strict=True):
            add(name, measured.suite, guess[priced], real[priced])
        kept = {plan for plan, is_priced in zip(measured.costs, priced, strict=True) if is_priced}
        again_ms = {plan: ms for plan, ms in measured.again_ms.items() if plan in kept}
        if len(again_ms) >= _LEAST_PLANS:
            add(REPEAT, measured.suite, *_twice(measured._replace(again_ms=again_ms)))
    return [
        {
            "cost": name, "suite": suite, "tasks": len(of_tasks), "tau": float(np.mean(of_tasks)),
            "close pairs": len(right[name, suite]),
            "of them right": float(np.mean(right[name, suite])) if right[name, suite] else None,
        }
        for (name, suite), of_tasks in sorted(taus.items(), key=lambda item: (item[0][1] == _ALL, item[0][1]))
    ]  # fmt: skip


def keep(tasks: list[Measured], models: Mapping[str, CostModel]) -> None:
    """Write how models, and the second measurement, rank the plans that were measured twice."""
    twice = [
        measured._replace(costs={plan: measured.costs[plan] for plan in measured.again_ms})
        for measured in tasks
        if len(measured.again_ms) >= _LEAST_PLANS
    ]
    of_all = {
        row["cost"]: ModelAgreement(row["tau"], row["of them right"])
        for row in on_boards(twice, models)
        if row["suite"] == _ALL
    }
    for name, model in models.items():
        *_, together = gate(twice, model)
        of_all[name] = dataclasses.replace(of_all[name], version=model.version, ahead_from=together["from"])
    machines = tuple(sorted({measured.hardware for measured in twice}))
    path = find_weights(None, "oracle", None).parent / AGREEMENT
    path.write_text(Agreement(len(twice), machines, utc_now(), of_all).to_json(indent=1) + "\n", encoding="utf-8")


class MeasuredCompute:
    """The exchanges that the judge predicts of plans whose compute was measured."""

    def __init__(self, tasks: list[Measured]) -> None:
        self._judge = make_cost("simulator", role="judge")
        self._predictor = Predictor(load_weights(find_weights(None, "judge", None), "judge"))
        self._measured = {measured.task.digest: measured.costs for measured in tasks}

    def evaluate(self, task: ShardingTask, plans: list[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        costs = self._judge.evaluate(task, plans)
        priced = [place for place, cost in enumerate(costs) if cost.feasible]
        known = [self._measured[task.digest][plans[place]].at_pace(1.0) for place in priced]
        compute_ms = np.array([cost.per_device[:, COMPUTE_COLUMNS] for cost in known])
        batch = self._predictor.batch(task, [plans[place] for place in priced])
        loads = np.zeros((len(priced), task.num_devices, LOADS))
        of_plan = np.repeat(np.arange(len(priced)), batch.counts)
        np.add.at(loads, (of_plan, batch.devices), self._predictor.loads(batch.shards))
        exchange = self._predictor.exchange_times(self._predictor.tasks_of(batch), compute_ms, loads)
        for place, per_device in zip(priced, join_phases(compute_ms, exchange), strict=True):
            costs[place] = dataclasses.replace(costs[place], per_device=per_device)
        return costs


def gate(tasks: list[Measured], judge: CostModel | MeasuredCompute) -> list[dict[str, Any]]:
    """Return how the judge's tau compares with a repeat's, by suite and of all tasks that were measured twice.

    "ahead" is the mean difference, with an interval of 95 % by a bootstrap over tasks.
    """
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for measured in tasks:
        if len(measured.again_ms) < _LEAST_PLANS:
            continue
        again, real = _twice(measured)
        guess = np.array([cost.total_ms for cost in judge.evaluate(measured.task, list(measured.again_ms))])
        # A plan that the judge refuses, since a table of it has replicas, has no place in its order.
        priced = np.isfinite(guess)
        again, real, guess = again[priced], real[priced], guess[priced]
        both = tau(guess, real), tau(again, real)
        for suite in (measured.suite, _ALL):
            found[suite].append(both)
    rng = np.random.default_rng(0)
    rows = []
    for suite, of_tasks in sorted(found.items(), key=lambda item: (item[0] == _ALL, item[0])):
        taus = np.array(of_tasks)
        ahead = taus[:, 0] - taus[:, 1]
        means = ahead[rng.integers(0, len(ahead), (_RESAMPLES, len(ahead)))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975]).tolist()
        rows.append({
            "suite": suite, "tasks": len(taus), "judge": float(taus[:, 0].mean()), "repeat": float(taus[:, 1].mean()),
            "ahead": float(ahead.mean()), "from": low, "to": high, "passes": bool(low >= -ALLOWANCE),
        })  # fmt: skip
    return rows


def _twice(measured: Measured) -> tuple[Floats, Floats]:
    """Return what the plans that were measured again took then, and before."""
    real = [measured.costs[plan].total_ms for plan in measured.again_ms]
    return np.array(list(measured.again_ms.values())), np.array(real)


def costs_of_plans(board: Board) -> dict[int, dict[ShardingPlan, PlanCost]]:
    """Return the cost of every distinct plan by task of the board."""
    found: dict[int, dict[ShardingPlan, PlanCost]] = defaultdict(dict)
    for result in board.results:
        if result.plan is not None and result.cost is not None and result.cost.feasible:
            found[result.task_index].setdefault(result.plan, result.cost)
    return found


if __name__ == "__main__":
    main()
