"""How often rows are looked up: counted exactly, and sketched, held against each other."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from shardgym import DrawnStream, EmbeddingTable, MissingDependencyError, ZipfIds
from shardgym.errors import InputError
from shardgym.tables.streams import frequencies, stream
from shardgym.tables.streams.frequencies import MOST_COUNTED_ROWS, CountedRows, SketchedRows, row_frequencies


def added(kind, batches):
    for ids in batches:
        kind.add(*np.unique(ids, return_counts=True))
    return kind


def zipf_batches(rows, count, batch, s=1.05, q=0.0):
    table = EmbeddingTable("t", rows, 4, batch / 100, ZipfIds(s, q))
    return [bags["t"].indices for bags in DrawnStream([table], samples=100 * count).batches(100)]


def test_counters_are_exact_whatever_the_chunks(monkeypatch):
    batches = zipf_batches(5000, 20, 1000)
    counts = np.bincount(np.concatenate(batches), minlength=5000)
    falling = np.sort(counts)[::-1]
    for chunk in (7, 2**22):
        monkeypatch.setattr(frequencies, "_CHUNK", chunk)
        found = added(CountedRows(5000), batches)
        assert found.exact
        assert found.total == 20_000
        assert found.distinct == np.count_nonzero(counts)
        hottest = found.hottest(30)
        assert hottest.rows.tolist() == np.argsort(-counts, kind="stable")[:30].tolist()
        assert hottest.counts.tolist() == falling[:30].tolist()
        numbers = np.array([0, 1, 5, 100, 3000, 5000, 9999])
        expected = np.concatenate([[0], np.cumsum(falling)])[np.minimum(numbers, 5000)] / 20_000
        assert found.hottest_share(numbers) == pytest.approx(expected)
        assert float(found.hottest_share(1)) == pytest.approx(falling[0] / 20_000)
    assert found.memory_bytes == 4 * 5000


def test_counters_do_not_overflow_unseen():
    found = CountedRows(3)
    found.add(np.array([1]), np.array([2**32 - 1]))
    with pytest.raises(InputError, match=r"more than 4\.29 billion ids"):
        found.add(np.array([2]), np.array([1]))


def test_memory_is_bounded_by_the_choice_of_counters(monkeypatch):
    assert row_frequencies(1000).exact
    assert 4 * MOST_COUNTED_ROWS == 2**29
    pytest.importorskip("datasketches")
    assert not row_frequencies(MOST_COUNTED_ROWS + 1).exact
    assert row_frequencies(2**40).memory_bytes < 64 * 2**20


def test_without_the_extra_large_tables_are_an_error_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(MissingDependencyError, match=r"'datasketches', which is not installed: .*shardgym\[sketches\]"):
        row_frequencies(2**30)
    assert row_frequencies(MOST_COUNTED_ROWS // 2**10).exact


@pytest.mark.parametrize(("s", "q"), [(1.05, 0.0), (1.05, 1000.0), (0.8, 0.0)])
def test_sketches_are_near_the_counters(s, q):
    pytest.importorskip("datasketches")
    batches = zipf_batches(10**6, 8, 10**5, s, q)
    exact, sketch = added(CountedRows(10**6), batches), added(SketchedRows(), batches)
    assert not sketch.exact
    assert sketch.total == exact.total == 8 * 10**5
    assert sketch.distinct == pytest.approx(exact.distinct, rel=0.01)
    named = sketch.hottest(10**6)
    assert len(named.rows) > 1000
    true = dict(zip(*(part.tolist() for part in exact.hottest(10**6)), strict=True))
    for row, count in zip(named.rows.tolist(), named.counts.tolist(), strict=True):
        assert true[row] <= count <= true[row] + 3.5 / 2**20 * sketch.total
    numbers = np.array([1, 10, 1000, 10**5, 10**6])
    assert sketch.hottest_share(numbers) == pytest.approx(exact.hottest_share(numbers), abs=0.03)


def test_sketches_say_little_but_nothing_wrong_of_even_ids():
    pytest.importorskip("datasketches")
    batches = zipf_batches(10**7, 8, 10**5, s=0.0)
    exact, sketch = added(CountedRows(10**7), batches), added(SketchedRows(), batches)
    numbers = np.array([1, 10**5, 5 * 10**5, 10**7])
    assert sketch.hottest_share(numbers) == pytest.approx(exact.hottest_share(numbers), abs=0.1)
    assert float(sketch.hottest_share(10**9)) == pytest.approx(1)
    empty = SketchedRows()
    assert (empty.total, empty.distinct, float(empty.hottest_share(5))) == (0, 0, 0)


def test_features_are_counted_in_groups_that_fit(monkeypatch):
    monkeypatch.setattr(stream, "MOST_COUNTED_ROWS", 250)
    tables = [EmbeddingTable(name, 100, 4) for name in "abcde"]
    drawn = DrawnStream(tables, samples=40)
    monkeypatch.setattr(DrawnStream, "read_together", 5)
    passes = []
    read = DrawnStream.batches
    monkeypatch.setattr(
        DrawnStream, "batches", lambda self, size, names: passes.append(names) or read(self, size, names)
    )
    found = drawn.statistics(20, frequencies=True)
    assert passes == [("a", "b"), ("c", "d"), ("e",)]
    assert [of_one.frequencies.total for of_one in found.values()] == [40] * 5
    passes.clear()
    drawn.statistics(20)
    assert passes == [tuple("abcde")]


MEMORY = """
import resource
from shardgym import DrawnStream, EmbeddingTable, ZipfIds
rows = {rows}
table = EmbeddingTable("t", rows, 4, 100.0, ZipfIds(1.05, 1000.0))
found = DrawnStream([table], samples=500_000).statistics(10_000, frequencies=True)["t"].frequencies
assert found.total == 50_000_000
assert found.hottest_share(10**6) > 0.5
assert len(found.hottest(1000).rows) == 1000
print(found.exact, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2**27, 2**27 + 1])
def test_fifty_million_ids_take_less_than_a_gibibyte(rows):
    if rows > MOST_COUNTED_ROWS:
        pytest.importorskip("datasketches")
    run = subprocess.run(
        [sys.executable, "-c", MEMORY.format(rows=rows)], capture_output=True, text=True, check=True, timeout=900
    )
    exact, peak_kib = run.stdout.split()
    assert exact == str(rows <= MOST_COUNTED_ROWS)
    assert int(peak_kib) < 2**20
