"""Notes of costs, for the text that commands print."""

from __future__ import annotations

from collections.abc import Sequence

from shardgym.costs.plan_cost import PlanCost


def notes(costs: Sequence[tuple[str, PlanCost]]) -> list[str]:
    """Return one line per distinct note.

    Args:
        costs: what each cost is called, and the cost. A note that only some of the feasible ones have names these.
    """
    found = dict.fromkeys(note for _, cost in costs for note in cost.notes)
    return [f"note: {note}{_of(note, costs)}" for note in found]


def _of(note: str, costs: Sequence[tuple[str, PlanCost]]) -> str:
    if all(note in cost.notes for _, cost in costs if cost.feasible):
        return ""
    return f" ({', '.join(name for name, cost in costs if note in cost.notes)})"
