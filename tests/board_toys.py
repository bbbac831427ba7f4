"""Boards whose costs are written down by hand."""

import dataclasses

from evaluation_toys import Halves, toy_tasks

from shardgym import PlanCost
from shardgym.evaluation.result import Result, RunInfo
from shardgym.leaderboard import load_boards
from shardgym.tasks.suites import load_suite, suite_names

TASKS = toy_tasks(40)
STARTED = "2025-01-01T00:00:00+00:00"


def record(solver, index, outcome, seed=0, **fields):
    """Return a result: `outcome` is a cost in ms, or a status; fields of the cost are told apart by their names."""
    suite = fields.get("suite", "toys")
    digest = load_suite(suite).digests[index] if suite in suite_names() else TASKS[index].digest
    values = {
        "suite": "toys", "task_index": index, "task_hash": digest, "solver": solver, "seed": seed,
        "judge": "lab-cost", "oracle": "roofline", "hardware": "lab", "status": "ok", "solve_time_s": 0.5,
        "started": STARTED,
    }  # fmt: skip
    of_cost = {name: fields.pop(name) for name in ("session", "compute", "communication", "notes") if name in fields}
    if isinstance(outcome, str):
        return Result(**values | {"status": outcome, "reason": "because"} | fields)
    judge, hardware = fields.get("judge", "lab-cost"), fields.get("hardware", "lab")
    cost = PlanCost([[0, outcome, 0, 0, 0]] * 2, judge, "1", hardware, **of_cost)
    plan = dataclasses.replace(Halves().solve(TASKS[index], None), task_hash=digest)
    return Result(**values | {"plan": plan, "cost": cost} | fields)


def write(folder, records, num_tasks=None, **run):
    """Write a folder with these records, as a run over all of their tasks would."""
    first = records[0]
    info = {
        "suite": first.suite, "judge": first.judge, "judge_version": "1", "judge_settings": first.judge_settings,
        "hardware": first.hardware, "oracle": first.oracle, "oracle_settings": {}, "time_limit_s": first.time_limit_s,
        "num_tasks": num_tasks or 1 + max(r.task_index for r in records),
        "solvers": tuple(dict.fromkeys(r.solver for r in records)), "seeds": tuple(sorted({r.seed for r in records})),
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    RunInfo(**info | run).write(folder)
    (folder / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in records))


def board_of(folder, outcomes, **fields):
    """Write records of {solver: outcome per task, None for no record}, or {solver: outcomes per seed and task}."""
    rows = [
        record(solver, index, outcome, seed, **fields)
        for solver, table in outcomes.items()
        for seed, column in enumerate(table if isinstance(table[0], list) else [table])
        for index, outcome in enumerate(column)
        if outcome is not None
    ]
    num_tasks = max(len(table[0] if isinstance(table[0], list) else table) for table in outcomes.values())
    write(folder, rows, num_tasks)
    (board,) = load_boards([folder])
    return board


def rows_of(ranking):
    return {row.solver: row for row in ranking.rows}
