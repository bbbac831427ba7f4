"""Bound the plans of boards from below: `python tools/plan_bounds.py FOLDER ...`.

For every task of a board whose judge is additive and bounded, as `gpu` and `roofline` are, `bounds.json` beside the
records gets what no plan takes less than by the judge (`baselines.milp.plan_bound`). Pages are made of these files by
`python tools/fill_pages.py`, and `python tools/check_leaderboards.py` computes the bound of the smallest task again.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from baselines.milp.plan_bound import lower_bound_ms
from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import InputError, ShardGymError
from shardgym.evaluation.result import RunInfo
from shardgym.files import write_whole
from shardgym.leaderboard import Ranking, load_boards
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask

#: Beside the records.
BOUNDS = "bounds.json"
#: Share by which a bound that is computed again may differ.
_SAME = 1e-3


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of boards")
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
            write_whole(folder / BOUNDS, (json.dumps(content, indent=1) + "\n").encode())
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def judge_of(folder: Path) -> tuple[RunInfo, CostModel]:
    """Return what a board was asked for, and its judge; raises `InputError` where there is no run."""
    info = RunInfo.beside(folder)
    if info is None:
        raise InputError(f"{folder} holds no run: expected a folder of leaderboards/")
    return info, make_cost(info.judge, **info.judge_settings)


def tasks_of(info: RunInfo) -> list[ShardingTask]:
    """Return the tasks of a board: the first ones of its suite."""
    suite = load_suite(info.suite)
    return [suite[number] for number in range(info.num_tasks)]


def read(folder: Path) -> dict[str, float]:
    """Return the bound of each task of a board in ms, by its digest.

    Raises:
        InputError: there are none, or they are of another version of the judge.
    """
    path = folder / BOUNDS
    if not path.is_file():
        raise InputError(f"{path} does not exist: expected what 'python tools/plan_bounds.py {folder}' writes")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _, cost = judge_of(folder)
    if (content["judge"], content["judge_version"]) != (cost.name, cost.version):
        raise InputError(
            f"{path} is of {content['judge']} {content['judge_version']}, the judge is {cost.name} {cost.version}: "
            f"run 'python tools/plan_bounds.py {folder}' again"
        )
    bounds: dict[str, float] = content["bounds_ms"]
    return bounds


def problems(folder: Path) -> list[str]:
    """Return what is wrong with the bounds of a board: plans below them, or another bound of the smallest task."""
    info, cost = judge_of(folder)
    bounds = read(folder)
    found = [
        f"{result.solver} takes {result.total_ms:g} ms on task {result.task_index}, less than the bound of "
        f"{bounds[result.task_hash]:g} ms"
        for board in load_boards([folder])
        for result in board.results
        if result.status == "ok" and result.total_ms < bounds[result.task_hash]
    ]
    smallest = min(tasks_of(info), key=_size)
    again = lower_bound_ms(smallest, cost)
    if not np.isclose(again, bounds[smallest.digest], rtol=_SAME):
        found.append(f"the bound of {smallest.name} is {again:g} ms, and was {bounds[smallest.digest]:g} ms")
    return found


def _size(task: ShardingTask) -> int:
    return task.num_tables * task.num_devices


def table(ranking: Ranking, folder: Path) -> str:
    """Return Markdown: how far the plans of each solver are above the bound, and the bound below those of the base."""
    bounds = read(folder)
    digests = {result.task_index: result.task_hash for result in ranking.board.results}
    bound_ms = np.array([bounds[digests[task]] for task in range(ranking.board.num_tasks)])
    rows = []
    for row, counted_ms in zip(ranking.rows, ranking.counted_ms, strict=True):
        ratios = counted_ms / bound_ms
        mean = float(np.exp(np.log(ratios).mean()))
        rows.append({"solver": row.solver, "over the bound": mean, "least": ratios.min(), "most": ratios.max()})
    below = float(np.exp(np.log(bound_ms / ranking.base_ms).mean()))
    sentence = (
        f"No plan of any kind takes less than {below:.3f} of what those of lpt do, by a bound of all plans "
        f"(`python tools/plan_bounds.py leaderboards/{folder.name}`). Cost over this bound, geometric mean over tasks, "
        "least and most:"
    )
    return f"{sentence}\n\n{tabulate(rows, headers='keys', floatfmt='.3f', tablefmt='github')}"


if __name__ == "__main__":
    sys.exit(main())
