"""Footnotes of simulated boards: how far the judge can be trusted, and whose plans it hardly knows."""

from __future__ import annotations

from collections import defaultdict

from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.simulator.model_card import shipped_agreement
from shardgym.leaderboard.board import Board

SIMULATOR = "simulator"


def simulated_notes(board: Board) -> list[str]:
    """Return the footnotes; none for a board that no simulator judged."""
    if board.key.judge != SIMULATOR:
        return []
    found = shipped_agreement(board.key.hardware)
    trust = found.sentence(board.key.judge_version) if found is not None else None
    return [trust or "How well this judge agrees with measurements is not on record.", _unfamiliar(board)]


def _unfamiliar(board: Board) -> str:
    scored: dict[str, int] = defaultdict(int)
    unfamiliar: dict[str, int] = defaultdict(int)
    reasons: set[str] = set()
    for result in board.results:
        if result.cost is not None and result.cost.feasible:
            scored[result.solver] += 1
            found = {note.removeprefix(f"{UNFAMILIAR}: ") for note in result.cost.notes if note.startswith(UNFAMILIAR)}
            unfamiliar[result.solver] += bool(found)
            reasons |= found
    if not reasons:
        return f"No plan was {UNFAMILIAR}."
    counts = ", ".join(f"{solver} {count} of {scored[solver]}" for solver, count in unfamiliar.items() if count)
    return f"Plans {UNFAMILIAR} ({', '.join(sorted(reasons))}): {counts}."
