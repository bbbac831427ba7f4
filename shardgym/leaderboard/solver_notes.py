"""What a reader must know of the solvers in a table: with which settings they were made."""

from __future__ import annotations

from typing import Any

from shardgym.evaluation.result import Result
from shardgym.leaderboard.board import Board


def solver_notes(board: Board) -> list[str]:
    """Return a sentence for each solver that was made with settings, and a warning where records differ in them."""
    notes = []
    for solver in board.solvers:
        distinct = list({r.recipe: r for r in board.results if r.solver == solver}.values())
        told = "; ".join(shown_recipe(result) for result in distinct)
        if len(distinct) > 1:
            notes.append(f"WARNING: records of {solver} were made with different settings: {told}.")
        elif distinct and distinct[0].made_from is not None:
            notes.append(f"{solver} is {told}.")
        elif distinct and distinct[0].solver_settings:
            notes.append(f"Settings of {solver}: {told}.")
    return notes


def shown_recipe(result: Result) -> str:
    """Return e.g. "neuroshard with beam_width=1", or the settings alone where `solver` is the name."""
    settings = shown_settings(result.solver_settings)
    if result.made_from is None:
        return settings
    return result.made_from if not result.solver_settings else f"{result.made_from} with {settings}"


def shown_settings(settings: dict[str, Any]) -> str:
    """Return settings as "name=value, ...", or "none"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "none"
