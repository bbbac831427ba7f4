"""What a run still has to solve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardgym.evaluation.entrant import Entrant
from shardgym.evaluation.result import Result
from shardgym.evaluation.resume import key_of
from shardgym.evaluation.run_info import RunInfo

#: Solvers and seeds that a task still needs.
Missing = list[tuple[Entrant, int]]


def missing_in(results: Iterable[Result], info: RunInfo, entrants: Sequence[Entrant]) -> list[Missing]:
    """Return what has no record yet, one list per task of the run."""
    there = {key_of(result) for result in results}
    return [
        [(e, seed) for e in entrants for seed in info.seeds if (index, e.spec.title, seed) not in there]
        for index in range(info.num_tasks)
    ]
