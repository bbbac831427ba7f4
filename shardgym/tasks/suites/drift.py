"""Tasks whose statistics drift: the same tables on the same devices, step after step accessed otherwise."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from statistics import NormalDist

from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.tasks.suites.sources import DrawnSource, TaskSource, random_stream
from shardgym.tasks.suites.spec import DriftTasks
from shardgym.tasks.task import ShardingTask

#: Digits that are kept of what drifts, so that all processors draw the same tasks.
_DIGITS = 6
#: Exponents stay between these.
_SKEWS = (0.0, 3.0)


class DriftSource(TaskSource):
    """Ten steps, or as many as the spec says, of every task that is drawn: a task of the suite for each step.

    Tables of the first step are as drawn. Then, from step to step, each pooling factor is multiplied by a log-normal
    factor, and the exponent of each Zipf law moves by a normal one. Reuse histograms, which are of the law as it was,
    are left out from the first step on. Rows, widths and memory stay, so a plan for one step is one for all.
    """

    def __init__(self, spec: DriftTasks, path: Path) -> None:
        self._spec = spec
        self._drawn = DrawnSource(spec.drawn, path)
        # Steps of one drift follow each other, each from the last.
        self._tables = functools.lru_cache(maxsize=2 * spec.steps)(self._tables_at)

    def __len__(self) -> int:
        return len(self._drawn) * self._spec.steps

    def group(self, index: int) -> str:
        """Return the group of the drawn task, and the number of the drift."""
        drift = index // self._spec.steps
        return f"{self._drawn.group(drift)}, drift {drift}"

    def build(self, index: int, name: str) -> ShardingTask:
        """Draw the task and let it drift to its step."""
        drift, step = divmod(index, self._spec.steps)
        drawn = self._drawn.build(drift, name)
        return dataclasses.replace(drawn, tables=self._tables(drift, step))

    def _tables_at(self, drift: int, step: int) -> tuple[EmbeddingTable, ...]:
        if step == 0:
            drawn = self._drawn.build(drift, "").tables
            return tuple(dataclasses.replace(table, reuse_histogram=None) for table in drawn)
        draw = random_stream(self._spec.seed, drift, step).random
        normal = NormalDist().inv_cdf
        return tuple(
            self._moved(table, normal(_inside(draw())), normal(_inside(draw())))
            for table in self._tables(drift, step - 1)
        )

    def _moved(self, table: EmbeddingTable, pooling: float, skew: float) -> EmbeddingTable:
        factor = _rounded(table.pooling_factor * math.exp(self._spec.pooling_change * pooling))
        ids = table.ids
        if isinstance(ids, ZipfIds):
            exponent = min(max(ids.s + self._spec.skew_change * skew, _SKEWS[0]), _SKEWS[1])
            ids = dataclasses.replace(ids, s=_rounded(exponent))
        return dataclasses.replace(table, pooling_factor=factor, ids=ids)


def _inside(uniform: float) -> float:
    """Return a number of [0, 1) as one of (0, 1), where the normal law has a quantile."""
    return min(max(uniform, 1e-12), 1 - 1e-12)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
