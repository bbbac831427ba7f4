"""PlusSettings: how thoroughly to search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardgym.errors import InputError

#: Queries without a limit of time, and kicks between them.
DEFAULT_QUERIES, KICKS_PER_ROUND = 32, 3
#: Kicks in succession without success after which a search with a limit of time ends early.
PATIENCE = 300
#: Kicks of a task with 0, 1, 2, ... tables: 30, 27, 24, ...
_KICKS_OF_NONE, _FEWER_PER_TABLE = 30, 3

_LEAST = {"kicks": 0, "kick_moves": 1, "shortlist": 1, "sources": 1, "queries": 1}


@dataclass(frozen=True)
class PlusSettings:
    """Constants of the search.

    Attributes:
        kicks: how often the best placement is disturbed and improved again. When None: with the learned simulator until
            the time limit where there is one, else only on tasks of fewer than 10 tables; with other cost models 3
            times between queries.
        kick_moves: random moves of one kick.
        shortlist: moves of a device whose communication is predicted.
        sources: most loaded devices that are tried before a placement counts as done.
        softness: width of the soft maximum over devices, as a share of their mean compute.
        queries: plans that cost models other than the learned simulator may be asked for. When None: 32 without a time
            limit, any number with one.

    Raises:
        InputError: a value is out of range or of another type.
    """

    kicks: int | None = None
    kick_moves: int = 2
    shortlist: int = 4
    sources: int = 2
    softness: float = 0.01
    queries: int | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if name in ("kicks", "queries") and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} of the search must be an integer from {least} on, got {value!r}")
        soft = self.softness
        if isinstance(soft, bool) or not isinstance(soft, int | float) or not 0 <= soft < math.inf:
            raise InputError(f"softness of the search must be a number from 0 on, got {soft!r}")

    def kicks_within(self, tables: int, *, limited: bool) -> int | None:
        """Return the number of kicks with the simulator, with or without a time limit; None for any number.

        Args:
            tables: of the task. Without a limit, large tasks get no kicks, so that the search takes no longer than the
                published one; on small ones a few milliseconds are worth it.
            limited: whether there is a time limit.
        """
        if self.kicks is not None or limited:
            return self.kicks
        return max(0, _KICKS_OF_NONE - _FEWER_PER_TABLE * tables)

    def queries_within(self, *, limited: bool) -> float:
        """Return the number of queries of a search with or without a time limit."""
        if self.queries is not None:
            return self.queries
        return math.inf if limited else DEFAULT_QUERIES
