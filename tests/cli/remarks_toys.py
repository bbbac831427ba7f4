"""A solver that says what takes long, importable as `remarks_toys:Slow`."""

from __future__ import annotations

import logging

from evaluation_toys import Halves


class Slow(Halves):
    """Logs that something takes long, and something for its author."""

    def solve(self, task, cost, seed=0):
        logger = logging.getLogger("shardgym.solvers.slow")
        logger.info("training first")
        logger.debug("a figure for the author")
        return super().solve(task, cost, seed)
