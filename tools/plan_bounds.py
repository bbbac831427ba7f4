"""Bound the plans of boards from below: `python tools/plan_bounds.py FOLDER ...`.

For every task of a board whose judge is additive and bounded, as `gpu` and `roofline` are, `bounds.json` beside the
records gets a lower bound on the costs of all plans (`baselines.milp.plan_bound`). Tables have a column of these
bounds, and `python tools/check_leaderboards.py` computes the bound of the smallest task again.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from baselines.milp.plan_bound import lower_bound_ms
from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import InputError, ShardGymError
from shardgym.evaluation.result import RunInfo
from shardgym.files import write_whole
from shardgym.leaderboard import load_boards
from shardgym.leaderboard.boards import BOUNDS
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask

#: Share by which a bound that is computed again may differ.
_SAME = 1e-3


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folders of boards")
    options = parser.parse_args(arguments)
    try:
        for folder in options.folders:
            info, cost = judge_of(folder)
            found = {}
            for task in tasks_of(info):
                start = time.process_time()
                found[task.digest] = lower_bound_ms(task, cost)
                print(f"{task.num_tables} tables, {task.num_devices} devices: {time.process_time() - start:.1f} s")
            content = {"judge": cost.name, "judge_version": cost.version, "bounds_ms": found}
            write_whole(folder / BOUNDS, json.dumps(content, indent=1) + "\n")
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def judge_of(folder: Path) -> tuple[RunInfo, CostModel]:
    """Return the run of a board, and its judge; raises `InputError` if there is no run."""
    info = RunInfo.beside(folder)
    if info is None:
        raise InputError(f"{folder} holds no run: expected a folder of leaderboards/")
    return info, make_cost(info.judge, **info.judge_settings)


def tasks_of(info: RunInfo) -> list[ShardingTask]:
    """Return the tasks of a board: the first ones of its suite."""
    suite = load_suite(info.suite)
    return [suite[number] for number in range(info.num_tasks)]


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the bounds of a board: the smallest task has another, or a plan costs less than its."""
    info, cost = judge_of(folder)
    try:
        (board,) = load_boards([folder])
    except InputError as error:
        return [str(error)]
    smallest = min(tasks_of(info), key=lambda task: task.num_tables * task.num_devices)
    again = lower_bound_ms(smallest, cost)
    before = board.bounds[smallest.digest]
    if np.isclose(again, before, rtol=_SAME):
        return []
    return [f"the bound of {smallest.name} is now {again:g} ms, but was {before:g} ms"]


if __name__ == "__main__":
    sys.exit(main())
