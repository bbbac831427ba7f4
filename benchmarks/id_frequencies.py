"""Counting how often rows are looked up in a long stream: CPU time, memory and error of counters and of sketches.

    python benchmarks/id_frequencies.py [--ids N] [--rows N] [-s S] [-q Q]

Ids of one table are drawn by `draw_bags` in batches of a million and counted twice, each time in a process of its own:
by a counter for each row, and by sketches (the extra `sketches`), as tables with more than 2**27 rows are. CPU time is
that of drawing and counting; of what an idle process takes besides, peak memory has some 120 MiB. Errors are those of
the sketches against the counters: of the number of distinct rows, relative; of the share of all lookups that the k
hottest rows have, absolute; and how many of the hottest rows both name in the same order.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from shardgym import DrawnStream, EmbeddingTable, ZipfIds
from shardgym.arrays import Floats, Ints
from shardgym.streams.frequencies import MOST_COUNTED_ROWS, CountedRows, SketchedRows

BATCH_SIZE = 10_000
POOLING_FACTOR = 100
HOTTEST = np.array([1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000])
NAMED = 10**6


class Counted(NamedTuple):
    """What one process found.

    Attributes:
        cpu_s: CPU time, drawing included.
        peak_mib: largest resident memory.
        counter_mib: that counters ever take, by their sizes.
        distinct: rows.
        shares: of the lookups that the hottest rows have, shape (8,).
        hottest: rows in falling order.
    """

    cpu_s: float
    peak_mib: float
    counter_mib: float
    distinct: float
    shares: Floats
    hottest: Ints


def count(arguments: tuple[bool, EmbeddingTable, int]) -> Counted:
    """Draw and count."""
    sketched, table, ids = arguments
    started = time.process_time()
    frequencies = SketchedRows() if sketched else CountedRows(table.num_embeddings)
    stream = DrawnStream([table], samples=ids // POOLING_FACTOR)
    for batch in stream.batches(BATCH_SIZE):
        frequencies.add(*np.unique(batch[table.name].indices, return_counts=True))
    shares = frequencies.hottest_share(HOTTEST)
    hottest = frequencies.hottest(NAMED).rows
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    memory = frequencies.memory_bytes / 2**20
    return Counted(time.process_time() - started, peak, memory, frequencies.distinct, shares, hottest)


def main() -> int:
    """Count twice and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=10**9)
    parser.add_argument("--rows", type=int, default=MOST_COUNTED_ROWS)
    parser.add_argument("-s", type=float, default=1.05)
    parser.add_argument("-q", type=float, default=1000.0)
    options = parser.parse_args()
    table = EmbeddingTable("t", options.rows, 4, POOLING_FACTOR, ZipfIds(options.s, options.q))
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        exact, sketch = pool.map(count, [(False, table, options.ids), (True, table, options.ids)], chunksize=1)
    print(f"{options.ids:,} ids of {options.rows:,} rows, s = {options.s:g}, q = {options.q:g}")
    rows = [("CPU time, s", *(f"{found.cpu_s:,.0f}" for found in (exact, sketch)), "")]
    rows += [("peak memory, MiB", *(f"{found.peak_mib:,.0f}" for found in (exact, sketch)), "")]
    rows += [("of counters, MiB", *(f"{found.counter_mib:,.0f}" for found in (exact, sketch)), "")]
    error = f"{sketch.distinct / exact.distinct - 1:+.2%}"
    rows += [("distinct rows", f"{exact.distinct:,.0f}", f"{sketch.distinct:,.0f}", error)]
    for number, true, found in zip(HOTTEST.tolist(), exact.shares, sketch.shares, strict=True):
        rows.append((f"share of the {number:,} hottest", f"{true:.4f}", f"{found:.4f}", f"{found - true:+.4f}"))
    most = min(len(exact.hottest), len(sketch.hottest))
    same = int(np.argmin(np.append(exact.hottest[:most] == sketch.hottest[:most], False)))
    rows.append(("rows named in order", f"{len(exact.hottest):,}", f"{len(sketch.hottest):,}", f"first {same:,} alike"))
    print(tabulate(rows, headers=("", "counters", "sketches", "error"), colalign=("left", "right", "right", "right")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
