"""The simulator against measurements: how it ranks fresh plans, and whether their level is right.

    python benchmarks/simulator.py [--weights FOLDER] [--suite NAME] [--tasks N] [--plans N]
    python benchmarks/simulator.py --boards [--write]

For every task, plans are measured twice, each time interleaved in one run: half of them random ones of all degrees
of balance, the others good ones, of searches and with a few shards moved. Printed are means over tasks of Kendall's
tau, of the mean absolute percentage error and of the level, the mean prediction over the mean measurement: of the
oracle, the judge (where there are weights of one) and the roofline against both measurements, and of the measurements
against each other.

--boards measures nothing: it holds the models that ship against the plans of the boards that the measured cost of today
judged. Most of these are good plans, so this is what differences between solvers rest on. --write keeps the figures as
`agreement.json` next to the weights, from where simulated boards print them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.stats import kendalltau
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingPlan, ShardingTask, load_suite, make_cost, make_solver
from shardgym.arrays import Floats
from shardgym.costs.fbgemm.cost import FbgemmCost
from shardgym.costs.simulator.model_card import AGREEMENT, CLOSE, REPEAT, Agreement, ModelAgreement
from shardgym.costs.simulator.weights import find_weights
from shardgym.errors import InfeasiblePlanError, ShardGymError
from shardgym.leaderboard import Board, load_boards
from shardgym.machine import utc_now

_DRAWS_PER_PLAN = 200
_SEARCHES = ("lpt", "column_greedy", "neuroshard", "neuroshard_plus")
_ALL = "all of these"
LEADERBOARDS = Path(__file__).parents[1] / "leaderboards"
#: Fewer plans of a task have no order worth the name.
_LEAST_PLANS = 3


def main(arguments: list[str] | None = None) -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, help="folder of 'shardgym pretrain'; the package's if not given")
    parser.add_argument("--suite", default="dlrm4-v2", help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--plans", type=int, default=12, help="per task (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of the measurement (%(default)s)")
    parser.add_argument("--write", action="store_true", help="keep the figures next to the weights")
    parser.add_argument("--boards", action="store_true", help="hold models against the plans of measured boards")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.boards and options.weights:
        parser.error("--boards is of the weights that ship: leave out --weights")
    if options.write and not options.boards:
        parser.error("--write keeps what --boards finds: give both")
    try:
        if options.boards:
            rows = on_boards(write=options.write)
            print(json.dumps(rows, indent=2) if options.json else tabulate(rows, headers="keys", floatfmt=".3f"))
            return 0
        rows = compare(options)
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(rows, indent=2) if options.json else tabulate(means(rows), headers="keys", floatfmt=".3f"))
    return 0


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure plans, and return how costs agree, one row per task and cost."""
    oracle = make_cost("simulator", weights=arguments.weights)
    models = {"oracle": oracle, "roofline": make_cost("roofline")}
    if arguments.weights is None or (arguments.weights / "judge.safetensors").exists():
        models["judge"] = make_cost("simulator", weights=arguments.weights, role="judge")
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    suite = load_suite(arguments.suite)
    with make_cost("fbgemm", rounds=arguments.rounds) as measured:
        for number in tqdm(range(min(arguments.tasks, len(suite)))):
            task = suite[number]
            plans = random_plans(task, arguments.plans // 2, rng)
            plans += good_plans(task, oracle, arguments.plans - len(plans), rng)
            try:
                rows += agreement(task, plans, models, measured)
            except KeyboardInterrupt:
                if not rows:
                    raise
                print(f"stopped: {number} tasks are complete, nothing is written", file=sys.stderr)
                return rows
    return rows


def on_boards(*, write: bool) -> list[dict[str, Any]]:
    """Return how models rank the distinct plans of each task of measured boards, by processor and of all."""
    judge = make_cost("simulator", role="judge")
    models = {"oracle": make_cost("simulator"), "roofline": make_cost("roofline"), "judge": judge}
    version = FbgemmCost.version
    taus: dict[tuple[str, str], list[float]] = defaultdict(list)
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    boards = [
        board
        for board in load_boards([LEADERBOARDS])
        if board.run.judge == "fbgemm" and board.run.judge_version == version
    ]
    for board in boards:
        for number, of_plans in ms_of_plans(board).items():
            task = board.task(number)
            if task is None:
                continue
            guesses = [[cost.total_ms for cost in model.evaluate(task, list(of_plans))] for model in models.values()]
            # Models are held against the same plans: those that all of them price.
            priced = np.isfinite(guesses).all(axis=0)
            if priced.sum() < _LEAST_PLANS:
                continue
            real = np.array(list(of_plans.values()))[priced]
            for name, guess in zip(models, np.array(guesses)[:, priced], strict=True):
                tau, alike = rank_agreement(guess, real, CLOSE)
                for hardware in (board.run.hardware, _ALL):
                    taus[name, hardware].append(tau)
                    right[name, hardware] += alike
    for one, other in itertools.permutations(boards, 2):
        if one.run.suite == other.run.suite:
            for tau, alike in agreement_of_measurements(one, other):
                taus[REPEAT, _ALL].append(tau)
                right[REPEAT, _ALL] += alike
    rows: list[dict[str, Any]] = [
        {
            "cost": name, "measured on": hardware, "tasks": len(of_tasks), "tau": float(np.mean(of_tasks)),
            "close pairs": len(right[name, hardware]), "of them right": float(np.mean(right[name, hardware])),
        }
        for (name, hardware), of_tasks in sorted(taus.items(), key=lambda item: (item[0][1] == _ALL, item[0][1]))
    ]  # fmt: skip
    if write:
        path = find_weights(None, "oracle", None).parent / AGREEMENT
        of_all = {
            row["cost"]: ModelAgreement(
                row["tau"], row["of them right"], models[row["cost"]].version if row["cost"] in models else ""
            )
            for row in rows
            if row["measured on"] == _ALL
        }
        boards_of = tuple(sorted({hardware for _, hardware in taus} - {_ALL}))
        found = Agreement(len(taus["judge", _ALL]), boards_of, utc_now(), of_all)
        path.write_text(found.to_json(indent=1) + "\n", encoding="utf-8")
    return rows


def ms_of_plans(board: Board) -> dict[int, dict[ShardingPlan, float]]:
    """Return the cost of every distinct plan by task of the board, in ms."""
    found: dict[int, dict[ShardingPlan, float]] = defaultdict(dict)
    for result in board.results:
        if result.plan is not None and result.cost is not None and result.cost.feasible:
            found[result.task_index].setdefault(result.plan, result.total_ms)
    return found


def agreement_of_measurements(one: Board, other: Board) -> Iterator[tuple[float, list[bool]]]:
    """Yield what `rank_agreement` says of two boards of one suite for each task of which both have several plans."""
    others = ms_of_plans(other)
    for task, of_plans in ms_of_plans(one).items():
        plans = [plan for plan in of_plans if plan in others[task]]
        if len(plans) > 1:
            costs = [np.array([measured[plan] for plan in plans]) for measured in (of_plans, others[task])]
            yield rank_agreement(costs[1], costs[0], CLOSE)


def rank_agreement(ms: Floats, reference_ms: Floats, close: float) -> tuple[float, list[bool]]:
    """Return how far two costs of the same plans order them alike.

    Args:
        ms: of each plan, shape (P,), P being 2 or more.
        reference_ms: of the same plans, shape (P,).
        close: relative difference below which two plans are close, by the reference.

    Returns:
        Kendall's tau-b, and for each pair of close plans whether both costs order it alike.
    """
    alike = [
        bool((ms[a] - ms[b]) * (reference_ms[a] - reference_ms[b]) > 0)
        for a, b in itertools.combinations(range(len(ms)), 2)
        if abs(reference_ms[a] / reference_ms[b] - 1) < close
    ]
    return float(kendalltau(ms, reference_ms).statistic), alike


def random_plans(task: ShardingTask, count: int, rng: np.random.Generator) -> list[ShardingPlan]:
    """Draw feasible table-wise plans, from balanced to lopsided; fewer where memory is tight."""
    plans: list[ShardingPlan] = []
    for _ in range(count * _DRAWS_PER_PLAN):
        shares = rng.dirichlet(np.full(task.num_devices, rng.uniform(2, 20)))
        plan = ShardingPlan.table_wise(task, rng.choice(task.num_devices, task.num_tables, p=shares).tolist())
        limits = task.topology.memory_bytes
        if all(used <= limit for used, limit in zip(plan.bytes_per_device(task), limits, strict=True)):
            plans.append(plan)
        if len(plans) == count:
            break
    return plans


def good_plans(task: ShardingTask, oracle: CostModel, count: int, rng: np.random.Generator) -> list[ShardingPlan]:
    """Return plans of searches, and those of them with one to four shards on other devices; all distinct."""
    found: dict[str, ShardingPlan] = {}
    for name in _SEARCHES:
        with contextlib.suppress(InfeasiblePlanError):
            plan = make_solver(name).solve(task, oracle, seed=0)
            found[plan.digest] = plan
    searched = list(found.values())
    for _ in range(count * _DRAWS_PER_PLAN if searched else 0):
        if len(found) >= count:
            break
        plan = searched[rng.integers(len(searched))]
        shards = list(plan.shards)
        for n in rng.choice(len(shards), size=min(len(shards), int(rng.integers(1, 5))), replace=False):
            shards[n] = dataclasses.replace(shards[n], devices=(int(rng.integers(task.num_devices)),))
        moved = dataclasses.replace(plan, shards=tuple(shards))
        with contextlib.suppress(InfeasiblePlanError):
            moved.validate(task)
            found[moved.digest] = moved
    return list(found.values())[:count]


def agreement(
    task: ShardingTask, plans: list[ShardingPlan], models: dict[str, CostModel], measured: CostModel
) -> list[dict[str, Any]]:
    """Compare all models with two measurements of the plans of one task; one row per model, none for under 3 plans."""
    if len(plans) < 3:
        return []
    totals = [np.array([cost.total_ms for cost in measured.evaluate(task, plans)]) for _ in range(2)]
    rows = [_row(task, REPEAT, totals[0], totals[1:])]
    for name, model in models.items():
        costs = model.evaluate(task, plans)
        row = _row(task, name, np.array([cost.total_ms for cost in costs]), totals)
        rows.append({**row, "unfamiliar": float(np.mean([bool(cost.notes) for cost in costs]))})
    return rows


def _row(task: ShardingTask, name: str, predicted: Any, totals: list[Any]) -> dict[str, Any]:
    taus = [float(kendalltau(predicted, total).statistic) for total in totals]
    off = [float(np.mean(np.abs(predicted / total - 1))) for total in totals]
    level = float(np.mean([predicted.mean() / total.mean() for total in totals]))
    tau = float(np.mean(taus))
    return {
        "task": task.name, "cost": name, "tau": tau, "mape": float(np.mean(off)), "level": level, "unfamiliar": 0.0,
    }  # fmt: skip


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over tasks."""
    names = list(dict.fromkeys(row["cost"] for row in rows))
    table = []
    for name in names:
        of_name = [row for row in rows if row["cost"] == name]
        figures = {key: float(np.mean([row[key] for row in of_name])) for key in ("tau", "mape", "level", "unfamiliar")}
        table.append({"cost": name, "tasks": len(of_name), **figures})
    return table


if __name__ == "__main__":
    sys.exit(main())
