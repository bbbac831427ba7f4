"""Outcomes: how N episodes end, and what they earn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.envs.game import Game
from shardgym.envs.vector.encoded_kinds import encoded_kinds
from shardgym.envs.vector.infos import objects
from shardgym.envs.vector.placements import Placements
from shardgym.envs.vector.plans import PlanMaker, finished
from shardgym.envs.vector.scorers import scorer
from shardgym.envs.vector.standing import standing
from shardgym.envs.vector.turn import Turn


class Outcomes:
    """Ends episodes and pays rewards. Methods take `rows`, numbers of environments, shape (n,).

    Args:
        num_envs: N.
        game: rules and cost model.
        placements: how far the episodes have come.

    Attributes:
        ended: whether there is nothing left to do, shape (N,).
        cost: of complete plans, None for others, shape (N,).
        earned: rewards of the episodes so far, shape (N,).
    """

    def __init__(self, num_envs: int, game: Game, placements: Placements) -> None:
        dense, shards = game.rules.reward == "dense", placements.shards
        self.ended: npt.NDArray[np.bool_] = np.ones(num_envs, dtype=np.bool_)
        self.cost: npt.NDArray[Any] = np.full(num_envs, None)
        self.earned: Floats = np.zeros(num_envs)
        self._penalty, self._placements = game.rules.penalty, placements
        self._encoded = encoded_kinds(game.cost, shards, dense=dense)
        self._standing = standing(game.cost, placements, self._encoded) if dense else None
        self._plans, self._scorer = PlanMaker(shards), scorer(game.cost, shards, self._encoded)

    def begin(self, rows: Ints) -> None:
        """See that placements were begun."""
        self.ended[rows], self.cost[rows], self.earned[rows] = False, None, 0.0
        if self._standing is not None:
            self._standing.begin(rows)

    def put(self, rows: Ints, devices: Ints) -> None:
        """See that the next shards are about to be put on devices."""
        if self._standing is not None:
            self._standing.put(rows, devices)

    def forget(self) -> None:
        """Forget all shards, as kinds have other numbers now."""
        self._plans.forget()
        if self._encoded is not None:
            self._encoded.forget()

    def compare(self, rows: Ints, turn: Turn) -> None:
        """With dense rewards, pay what placements that go on added to their cost."""
        if self._standing is not None and len(rows):
            ms, reasons = self._standing.ms(rows)
            known = np.isfinite(ms)
            self._earn(rows[known], -ms[known], turn)
            self.give_up(rows[~known], "no_cost", reasons.__getitem__, turn)

    def score(self, rows: Ints, turn: Turn) -> None:
        """End episodes whose placement is complete."""
        if not len(rows):
            return
        done = finished(self._placements, rows)
        plans = self._plans.plans(done)
        costs = self.cost[rows] = objects(self._scorer.costs(done, plans), len(rows))
        feasible = np.array([cost.feasible for cost in costs])
        turn.say(rows, outcome=np.where(feasible, "complete", "no_cost").tolist(), plan=plans, cost=costs)
        turn.say(rows[~feasible], reason=[cost.reason for cost in costs[~feasible]])
        self.ended[rows] = True
        standing_ms = np.array([-cost.total_ms for cost in costs])
        self._earn(rows, np.maximum(standing_ms, self._penalty), turn)

    def give_up(self, rows: Ints, outcome: str, why: Callable[[int], str | None], turn: Turn) -> None:
        """End episodes without a cost; `why` gives the reason of each."""
        if len(rows):
            turn.say(rows, outcome=[outcome] * len(rows), reason=[why(row) for row in rows.tolist()])
            self.ended[rows] = True
            self._earn(rows, self._penalty, turn)

    def _earn(self, rows: Ints, standing: float | Floats, turn: Turn) -> None:
        """Pay the rewards that bring what is earned to `standing`."""
        turn.rewards[rows], self.earned[rows] = standing - self.earned[rows], standing
