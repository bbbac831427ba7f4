"""What a reader must know of the solvers in a table: with which settings they were made."""

from __future__ import annotations

from typing import Any

from shardgym.leaderboard.board import Board
from shardgym.records import canonical_json


def solver_notes(board: Board) -> list[str]:
    """Return a sentence for each solver that was made with settings, and a warning where records differ in them."""
    notes = []
    for solver in board.solvers:
        given = [r.solver_settings for r in board.results if r.solver == solver]
        distinct = list({canonical_json(settings): settings for settings in given}.values())
        told = "; ".join(shown_settings(settings) for settings in distinct)
        if len(distinct) > 1:
            notes.append(f"WARNING: records of {solver} were made with different settings: {told}.")
        elif distinct and distinct[0]:
            notes.append(f"Settings of {solver}: {told}.")
    return notes


def shown_settings(settings: dict[str, Any]) -> str:
    """Return settings as "name=value, ...", or "none"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "none"
