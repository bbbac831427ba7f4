"""A cost with notes, importable as `cost_notes_toys:NotedCost`."""

from __future__ import annotations

from dataclasses import replace

from evaluation_toys import DriftingCost


class NotedCost(DriftingCost):
    """Has one note for all plans, and one for plans with three tables on device 0."""

    name = "cost_notes_toys:NotedCost"

    def _cost(self, task, plan):
        lopsided = ("lopsided plans are seldom good",) if len(plan.on(0)) == 3 else ()
        return replace(super()._cost(task, plan), notes=("devices shared cores", *lopsided))
