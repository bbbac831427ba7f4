"""With which seeds the plans of a table were made: a picked seed must be visible."""

from __future__ import annotations

from collections.abc import Mapping

from shardgym.leaderboard.board import Board

Seeds = tuple[int, ...]


def seed_notes(board: Board) -> list[str]:
    """Return the footnotes; none for a board without records."""
    had = _had(board)
    if not had:
        return []
    lacking = {solver: tuple(s for s in asked if s not in had.get(solver, ())) for solver, asked in board.seeds.items()}
    notes = [_one(next(iter(had.values()))) if len(set(had.values())) == 1 else _different(had)]
    if any(lacking[solver] for solver in had):
        told = _by_seeds({solver: seeds for solver, seeds in lacking.items() if seeds})
        notes.append(f"Asked for and without any record: {told}.")
    return notes


def _had(board: Board) -> dict[str, Seeds]:
    """Return the seeds that each solver has records of; solvers without records are left out."""
    found: dict[str, set[int]] = {}
    for result in board.results:
        found.setdefault(result.solver, set()).add(result.seed)
    return {solver: tuple(sorted(found[solver])) for solver in board.solvers if solver in found}


def _one(seeds: Seeds) -> str:
    mean = "; a task's cost is the mean over them" if len(seeds) > 1 else ""
    return f"Every solver ran with {_shown(seeds)}{mean}."


def _different(had: Mapping[str, Seeds]) -> str:
    several = any(len(seeds) > 1 for seeds in had.values())
    mean = " A task's cost is the mean over a solver's own seeds." if several else ""
    return f"WARNING: solvers ran with different seeds: {_by_seeds(had)}.{mean}"


def _by_seeds(seeds_of: Mapping[str, Seeds]) -> str:
    """Return e.g. "seed 0 for random, dim_greedy; seeds 0, 1 for ppo"."""
    groups: dict[Seeds, list[str]] = {}
    for solver, seeds in seeds_of.items():
        groups.setdefault(seeds, []).append(solver)
    return "; ".join(f"{_shown(seeds)} for {', '.join(solvers)}" for seeds, solvers in groups.items())


def _shown(seeds: Seeds) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
