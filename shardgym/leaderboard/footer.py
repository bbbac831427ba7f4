"""What a reader must know to read a table: policy, judge, and how the times came about."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict

from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.evaluation.result import Result
from shardgym.leaderboard.board import Board
from shardgym.leaderboard.own_measure import own_measure_notes
from shardgym.leaderboard.ranking import Ranking
from shardgym.leaderboard.seed_notes import seed_notes
from shardgym.leaderboard.simulated import simulated_notes
from shardgym.leaderboard.solver_notes import shown_settings, solver_notes
from shardgym.leaderboard.statistics import FEWEST, RESAMPLES, SEED


def footer(ranking: Ranking) -> list[str]:
    """Return the footnotes of a table, one sentence or two each."""
    board, key = ranking.board, ranking.board.key
    oracles = ", ".join(sorted({r.oracle for r in board.results})) or "-"
    settings = shown_settings(json.loads(key.judge_settings))
    notes = [
        "Cost of a plan: the slowest device's sum of forward compute, forward communication, backward communication "
        "and backward compute, in ms per training step.",
        f"Judge: {key.judge} {key.judge_version} on {key.hardware}, settings: {settings}. "
        f"Oracle that solvers could query: {oracles}.",
        *own_measure_notes(board),
        f"Means are over the {ranking.num_common} of {len(board.tasks)} tasks that every complete solver has solved "
        "(a solver that solved less than nine tenths as many as the best does not count here).",
        "Ranked by tasks solved, then by geometric mean cost; a solver without a record for every task and seed has "
        "no rank.",
        f"Gap: geometric mean over tasks of cost / cost of rank 1, less 1; interval by {RESAMPLES:,} bootstrap "
        f"resamples of the tasks, seed {SEED}. '1=' marks a tie with rank 1: the interval contains 0.",
    ]
    if ranking.num_common < FEWEST:
        notes.append(f"Fewer than {FEWEST} tasks: no intervals, and nobody can be told from rank 1.")
    if any(row.tasks not in (0, ranking.num_common) for row in ranking.rows):
        notes.append("*: mean over fewer tasks than the others', not to be compared with them.")
    if ranking.best_heuristic is not None:
        notes.append(
            f"vs greedy: geometric mean over tasks of cost / cost of {ranking.best_heuristic}, "
            "the greedy heuristic with the lowest geometric mean."
        )
    if board.clash is not None:
        notes.append(f"The records of {board.place} alone, in no table with others of the same kind: {board.clash}.")
    notes += seed_notes(board)
    return notes + solver_notes(board) + simulated_notes(board) + _measurement_notes(board) + _failure_notes(ranking)


def _measurement_notes(board: Board) -> list[str]:
    """Say how the times came about, as far as records tell."""
    scored = [(r.task_index, r.cost) for r in board.results if r.cost is not None and r.cost.feasible]
    modelled = {task for task, cost in scored if cost.communication == "modelled"}
    sessions: dict[int, set[str]] = defaultdict(set)
    for task, cost in scored:
        sessions[task].add(cost.session)
    apart = sum(len(found) > 1 for found in sessions.values())
    notes = []
    if modelled:
        notes.append(f"Communication was modelled, not measured, for {len(modelled)} of {len(board.tasks)} tasks.")
    if apart:
        tasks = "1 task holds" if apart == 1 else f"{apart} tasks hold"
        notes.append(f"WARNING: {tasks} times of different measurement sessions, which may differ by drift.")
    noise = [cost.noise for _, cost in scored if cost.noise > 0]
    if noise:
        notes.append(f"Median standard error of a measured cost: {100 * statistics.median(noise):.1f} %.")
    told = {note for _, cost in scored for note in cost.notes if not note.startswith(UNFAMILIAR)}
    return notes + [f"Note of the judge: {note}" for note in sorted(told)]


def _is_late(result: Result) -> bool:
    """Say whether a solver took clearly longer than it was given."""
    return result.time_limit_s is not None and result.solve_time_s > 1.1 * result.time_limit_s + 0.1


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _failure_notes(ranking: Ranking) -> list[str]:
    limit = ranking.board.key.time_limit_s
    notes = [] if limit is None else [f"Time limit per plan: {limit:g} s."]
    for row in ranking.rows:
        late = [r for r in ranking.board.results if r.solver == row.solver and _is_late(r)]
        if late:
            notes.append(f"{row.solver} overran the time limit {_times(len(late))}.")
        if row.failures:
            counts = ", ".join(f"{n} {status}" for status, n in sorted(row.failures.items()))
            notes.append(f"Records of {row.solver} without a cost: {counts}.")
    return notes
