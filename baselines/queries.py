"""How many plans a search may ask the oracle about; one notion for all searches here, so that they can be compared."""

from __future__ import annotations

import math

from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.task import ShardingTask

#: Plans that a search without a time limit asks about, for each table of the task.
_QUERIES_PER_TABLE = 50
#: The same where plans are measured, whatever the task: each takes about a second.
_MEASURED_QUERIES = 32


class Queries:
    """What is left of a number of queries.

    A query is one complete plan whose cost the oracle says: evaluated alone or with others, or added up from what
    changed. Prices of single shards are one query for all shards that are priced together.

    Args:
        limit: given by the user; when None, any number with a time limit, else 50 for each table, or 32 where the cost
            is measured.
        task: the task.
        cost: the oracle.
        time_limit_s: of the search.

    Attributes:
        limit: queries in all; infinite for any number.
        asked: queries so far.
    """

    def __init__(self, limit: int | None, task: ShardingTask, cost: CostModel, time_limit_s: float | None) -> None:
        self.limit: float
        if limit is not None:
            self.limit = limit
        elif time_limit_s is not None:
            self.limit = math.inf
        else:
            self.limit = _QUERIES_PER_TABLE * task.num_tables if cost.deterministic else _MEASURED_QUERIES
        self.asked = 0

    @property
    def left(self) -> float:
        """Queries that may still be asked."""
        return self.limit - self.asked

    def take(self, wanted: int) -> int:
        """Take up to `wanted` queries, and return how many there were."""
        taken = int(min(wanted, self.left))
        self.asked += taken
        return taken


def check_queries(queries: int | None) -> int | None:
    """Check a solver's setting; raises `InputError` when it is neither None nor a whole number from 1 on."""
    return None if queries is None else check_int("queries", queries, 1)
