"""A footnote for boards whose judge is what solvers could query: they are marked by their own measure."""

from __future__ import annotations

from shardgym.costs.plan_cost import PlanCost
from shardgym.leaderboard.board import Board
from shardgym.leaderboard.parts import Part
from shardgym.leaderboard.simulated import SIMULATOR
from shardgym.records import canonical_json

_CONSEQUENCE = "solvers that query it are marked by their own measure"


def own_measure_notes(board: Board) -> list[str]:
    """Return the footnote; none when no solver could query its judge, and for judges that measure.

    Judge and oracle of a run are made by the same code, so with the same name and settings they have the same version.
    """
    solvers = [solver for part in board.parts if _is_own(part) for solver in _scored_by_model(part)]
    unknown = [solver for part in board.parts if _may_be_own(part) for solver in _scored_by_model(part)]
    notes = [f"Judge and oracle{_of(solvers, board)} are the same model: {_CONSEQUENCE}."] if solvers else []
    if unknown:
        notes.append(
            f"Judge and oracle{_of(unknown, board)} have the same name, and no run.json tells the oracle's settings: "
            f"if they are the judge's, {_CONSEQUENCE}."
        )
    return notes


def _is_own(part: Part) -> bool:
    """Say whether name and settings of the oracle are those of the judge."""
    info = part.info
    return (
        info is not None and info.oracle == info.judge
        and canonical_json(info.oracle_settings) == canonical_json(info.judge_settings)
    )  # fmt: skip


def _may_be_own(part: Part) -> bool:
    """Say whether records alone leave it open; a run refuses a simulator that is judge and oracle at once."""
    same = any(result.oracle == result.judge for result in part.results)
    return part.info is None and same and part.key.judge != SIMULATOR


def _scored_by_model(part: Part) -> list[str]:
    """Return the solvers whose plans got a cost that is the same each time, and whose oracle has the judge's name."""
    found = [r for r in part.results if r.oracle == r.judge and r.cost is not None and r.cost.feasible]
    return list(dict.fromkeys(r.solver for r in found if r.cost is not None and _is_deterministic(r.cost)))


def _is_deterministic(cost: PlanCost) -> bool:
    return "measured" not in (cost.compute, cost.communication) and not cost.noise and not cost.session


def _of(solvers: list[str], board: Board) -> str:
    """Name the solvers unless they are all that have a cost."""
    everyone = {result.solver for result in board.results if result.status == "ok"}
    return "" if everyone <= set(solvers) else f" of {', '.join(dict.fromkeys(solvers))}"
