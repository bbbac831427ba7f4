"""Measuring only while the machine is quiet: a reference is measured again and again, and says whether it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.files import append_flushed, read_lines
from shardgym.records import parse_json
from shardgym.table import EmbeddingTable, ZipfIds

REFERENCES = "references.jsonl"

#: Seconds between two looks at a machine that is not quiet.
PAUSE_S = 10.0
#: Samples between two references.
BATCH = 20
#: The quiet level is this quantile of all references: a lucky one should not condemn those after it.
_QUANTILE = 0.1


def reference_set() -> ShardSet:
    """Return what is measured as the reference: four tables that together leave the caches, some 10 ms a step."""
    table = EmbeddingTable("reference", 200_000, 64, 8.0, ZipfIds(s=1.05))
    return ShardSet((ShardSpec(table, (0, table.num_embeddings), 64),) * 4, 4_096, "fp32", "exact_sgd")


class QuietWatch:
    """Compares references with the quiet level, which is kept in the folder over runs.

    Args:
        folder: of the collection.
        measure: measures the reference in ms.
        tolerance: by how much a reference may exceed the quiet level, as a share.
        sleep: waits for so many seconds.

    Attributes:
        pauses: times that measuring was interrupted.
        paused_s: how long in all.
        discarded: samples that were measured while the machine was not quiet, and thrown away.
    """

    def __init__(
        self, folder: Path, measure: Callable[[], float], tolerance: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._path = folder / REFERENCES
        self._measure = measure
        self._tolerance = tolerance
        self._sleep = sleep
        lines = read_lines(self._path) if self._path.exists() else []
        self._known = [float(parse_json(line.text, line.where(self._path))["ms"]) for line in lines]
        self.pauses = 0
        self.paused_s = 0.0
        self.discarded = 0

    def is_quiet(self) -> bool:
        """Measure the reference and say whether it is near the quiet level."""
        ms = self._measure()
        append_flushed(self._path, (json.dumps({"ms": round(ms, 6), "utc_s": int(time.time())}) + "\n").encode())
        self._known.append(ms)
        return ms <= (1 + self._tolerance) * float(np.quantile(self._known, _QUANTILE))

    def wait(self, time_is_up: Callable[[], bool]) -> bool:
        """Wait until the machine is quiet; False when the time was up before."""
        if self.is_quiet():
            return True
        self.pauses += 1
        while not time_is_up():
            self._sleep(PAUSE_S)
            self.paused_s += PAUSE_S
            if self.is_quiet():
                return True
        return False

    def notice(self) -> str:
        """Say what the watch did."""
        level = float(np.quantile(self._known, _QUANTILE)) if self._known else 0.0
        return (
            f"quiet level {level:.3g} ms over {len(self._known)} references; paused {self.pauses} times for "
            f"{self.paused_s / 60:.1f} minutes, {self.discarded} samples of noisy moments thrown away"
        )
