"""Tasks made ready for episodes, kept between them."""

from __future__ import annotations

from typing import NamedTuple

from shardgym.envs.figures import Figures
from shardgym.envs.observation import ObservationBuilder
from shardgym.envs.observation_space import Layout
from shardgym.task import ShardingTask

#: Tasks that are kept.
_TASKS_KEPT = 1024


class Prepared(NamedTuple):
    """What episodes of one task share."""

    figures: Figures
    builder: ObservationBuilder


class PreparedTasks:
    """Prepares tasks when they are first asked for.

    Args:
        order: in which tables come up.
        layout: of observations.
    """

    def __init__(self, order: str, layout: Layout) -> None:
        self._order, self._layout = order, layout
        self._known: dict[tuple[str, str], Prepared] = {}

    def __call__(self, task: ShardingTask) -> Prepared:
        """Return the figures of a task and the builder of its observations."""
        key = task.digest, task.name
        if key not in self._known:
            if len(self._known) >= _TASKS_KEPT:
                self._known.pop(next(iter(self._known)))
            figures = Figures.of(task, self._order)
            self._known[key] = Prepared(figures, ObservationBuilder(figures, self._layout))
        return self._known[key]
