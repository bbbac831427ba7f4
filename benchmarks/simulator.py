"""The simulator against the boards that the measured cost of today judged: how it orders the plans of solvers.

    python benchmarks/simulator.py [--write] [--json]

Most of these plans are good, so this is what differences between solvers rest on. Printed are, of the weights that
ship, of the roofline, and of another measurement where a suite was measured twice: the mean over tasks of Kendall's
tau, and the share of close pairs in the measured order. --write keeps the figures as `agreement.json` next to the
weights, from where simulated boards print them. Fresh plans are measured by `benchmarks/validity.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.stats import kendalltau
from tabulate import tabulate

from shardgym import ShardingPlan, make_cost
from shardgym.arrays import Floats
from shardgym.costs.fbgemm.cost import FbgemmCost
from shardgym.costs.simulator.model_card import AGREEMENT, CLOSE, REPEAT, Agreement, ModelAgreement
from shardgym.costs.simulator.weights import find_weights
from shardgym.leaderboard import Board, load_boards
from shardgym.machine import utc_now

_ALL = "all of these"
LEADERBOARDS = Path(__file__).parents[1] / "leaderboards"
#: Fewer plans of a task have no order worth the name.
_LEAST_PLANS = 3


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the figures next to the weights")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = on_boards(write=options.write)
    print(json.dumps(rows, indent=2) if options.json else tabulate(rows, headers="keys", floatfmt=".3f"))


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


if __name__ == "__main__":
    main()
