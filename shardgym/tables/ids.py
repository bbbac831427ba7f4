"""The ids of one batch of one table: drawn, reproducible from a seed, and counted; or counted as expected, undrawn."""

import functools
import math
import zlib

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.errors import InputError
from shardgym.tables.bags import Bags, RangeCounts, check_bags, count_in_ranges, range_bounds
from shardgym.tables.streams.stream import recorded_bags
from shardgym.tables.table import REUSE_BINS, EmbeddingTable, IdDistribution, RangeIds, RecordedIds, UniformIds, ZipfIds

#: Ids drawn at once: small enough to stay in a core's cache.
_CHUNK = 2**16

#: Ranks of `ZipfLaw` whose masses are summed exactly. Behind them a rank's mass is the integral over its unit interval,
#: which is off by a factor of 1 + s(s+1)/24/(rank+q)**2 at most: 2e-6 for s = 1.
HEAD_RANKS = 256

#: Cells of [0, 1) in the guide table of `ZipfLaw`; only uniforms in a cell that several ranks share are searched for.
_CELLS = 4096


def what_is_drawn(table: EmbeddingTable) -> tuple[str, int, float, IdDistribution, float]:
    """Return all of a table that its ids depend on."""
    return table.name, table.num_embeddings, table.pooling_factor, table.ids, table.run_length


def draw_bags(table: EmbeddingTable, batch_size: int, *, seed: int, batch: int = 0, placed: bool = True) -> Bags:
    """Draw the ids of `table` for batch number `batch`.

    The draw depends on `what_is_drawn` of the table, on `seed` and on `batch`. It does not depend on the width, so
    column shards and every plan of a task see the same ids. Recorded ids ignore the seed: their batches follow each
    other, and the first comes after the last whole one.

    Args:
        table: the table.
        batch_size: samples of a batch.
        seed: seed of the draws.
        batch: number of the batch.
        placed: whether popularity ranks become rows. It makes no difference to how often rows are drawn.

    Raises:
        InputError: recorded ids cannot be found, differ from their checksum, hold fewer samples, or are not rows of the
            table.
    """
    if isinstance(table.ids, RecordedIds):
        if batch_size > table.ids.samples:
            raise InputError(
                f"table '{table.name}': batch size {batch_size} exceeds the {table.ids.samples} samples recorded in "
                f"'{table.ids.file}'"
            )
        try:
            whole = recorded_bags(table.ids)
        except InputError as error:
            raise InputError(f"table '{table.name}': {error}") from None
        _check_recording(table.name, table.num_embeddings, table.pooling_factor, table.ids)
        return whole.samples(batch % (table.ids.samples // batch_size) * batch_size, batch_size)
    rng = np.random.default_rng([seed, batch, zlib.crc32(table.name.encode())])
    lengths: Ints
    if table.ids.lengths == "poisson":
        lengths = rng.poisson(table.pooling_factor, size=batch_size).astype(np.int64)
    else:
        # Rounding running totals, not single bags, keeps the mean of a fractional pooling factor.
        ends = np.floor(np.arange(batch_size + 1) * table.pooling_factor + 0.5).astype(np.int64)
        lengths = np.diff(ends)
    count = int(lengths.sum())
    if table.run_length == 1:
        return Bags(draw_rows(table.ids, table.num_embeddings, count, rng, placed=placed), lengths)
    runs = (np.arange(count) / table.run_length).astype(np.int64)
    drawn = draw_rows(table.ids, table.num_embeddings, int(runs[-1]) + 1 if count else 0, rng, placed=placed)
    return Bags(drawn[runs], lengths)


#: By how much a recorded stream may differ from the statistics of its table, which are rounded.
_ROUNDED = 1e-3


@functools.lru_cache(maxsize=1024)  # counting the ids of a recording takes longer than using them
def _check_recording(name: str, rows: int, pooling_factor: float, ids: RecordedIds) -> None:
    """Raise `InputError` for a recording that contradicts what a table says of its accesses."""
    where = f"ids of table '{name}'"
    whole = recorded_bags(ids)
    check_bags(name, rows, whole, ids.samples)
    pooling = len(whole.indices) / ids.samples
    if abs(pooling - pooling_factor) > _ROUNDED * max(pooling, 1.0):
        raise InputError(
            f"{where}: '{ids.file}' has {pooling:.6g} ids per sample, expected pooling_factor {pooling_factor:.6g}"
        )
    if ids.range_shares is None or ids.range_distinct is None:
        return
    bounds = range_bounds(len(ids.range_shares), rows)
    counted_in_ranges = np.zeros((2, len(ids.range_shares)), dtype=np.int64)
    for first in range(0, ids.samples, ids.batch_size):
        rows_and_counts = np.unique(whole.samples(first, ids.batch_size).indices, return_counts=True)
        counted_in_ranges += count_in_ranges(*rows_and_counts, bounds)
    found = RangeCounts.of_totals(*counted_in_ranges)
    of_table = {"range_shares": ids.range_shares, "range_distinct": ids.range_distinct}
    for (field, told), counted in zip(of_table.items(), found, strict=True):
        off = np.abs(np.subtract(told, counted))
        at = int(off.argmax())
        if off[at] > _ROUNDED:
            raise InputError(
                f"{where}: {field}[{at}] is {told[at]:.4g}, but {counted[at]:.4g} in '{ids.file}': load the table again"
            )


def draw_rows(
    ids: UniformIds | ZipfIds | RangeIds, rows: int, count: int, rng: np.random.Generator, *, placed: bool = True
) -> Ints:
    """Draw `count` row ids in [0, rows); of a Zipf law, popularity ranks if they are not to be `placed`."""
    if isinstance(ids, UniformIds):
        return rng.integers(0, rows, size=count, dtype=np.int64)
    drawn = np.empty(count, dtype=np.int64)
    if isinstance(ids, RangeIds):
        law_of_ranges = _RangeLaw(ids, rows)
        for start in range(0, count, _CHUNK):
            chunk = drawn[start : start + _CHUNK]
            chunk[:] = law_of_ranges.rows(rng.random(chunk.size))
        return drawn
    law = ZipfLaw(ids.s, ids.q, rows)
    block = rows_of_block(ids, rows)
    for start in range(0, count, _CHUNK):
        chunk = drawn[start : start + _CHUNK]
        ranks = law.ranks(rng.random(chunk.size))
        chunk[:] = place_ranks(ranks, rows, block) if placed else ranks
    return drawn


def rows_of_block(ids: ZipfIds, rows: int) -> int:
    """Return how many neighbours by rank are neighbours by row: all of a table that is sorted by frequency."""
    if ids.row_order == "by_frequency":
        return rows
    return ids.block_rows or 1


def place_ranks(ranks: Ints, rows: int, block_rows: int) -> Ints:
    """Place popularity ranks in [0, rows) on rows: blocks are scattered, what fills no block stays at the end.

    Blocks of 1 row scatter single ranks, those of all rows leave all where they are.
    """
    if block_rows == 1:
        return scatter_ranks(ranks, rows)
    blocks = rows // block_rows
    number = ranks // block_rows
    places = scatter_ranks(np.minimum(number, blocks - 1), blocks)
    return np.where(number < blocks, places * block_rows + ranks % block_rows, ranks)


def scatter_ranks(ranks: Ints, rows: int) -> Ints:
    """Place popularity ranks on rows by an affine bijection modulo `rows`.

    The step is near the golden section of `rows`: any number of leading ranks spreads evenly over the rows, so every
    range of rows gets its fair share of popular ones.
    """
    if rows < 3:
        return ranks
    step = int(rows * 0.6180339887)
    while math.gcd(step, rows) != 1:
        step -= 1
    scattered: Ints
    if rows < 2**31:
        scattered = (ranks * step + rows // 3) % rows
    else:  # ranks * step does not fit into 64 bits: multiply the upper and the lower bits of the ranks apart
        high = ranks >> 20
        low = ranks & (2**20 - 1)
        scattered = (high * ((step << 20) % rows) + low * step + rows // 3) % rows
    return scattered


class ZipfLaw:
    """Popularity ranks x = 0, 1, ..., rows - 1 with probability proportional to (x + 1 + q) ** -s.

    Args:
        s: exponent, at least 0.
        q: shift, at least -0.5.
        rows: number of ranks, at least 1.

    Attributes:
        head: ranks with masses of their own, which `cumulative_head` adds up; their share of all is `head_share`.
        power: behind the head, the mass up to a rank is that of t ** (power - 1) from `low` to t.
        log_range: logarithm of how many times as far as `low` the last rank is.
    """

    def __init__(self, s: float, q: float, rows: int) -> None:
        self.rows = rows
        self.head = min(rows, HEAD_RANKS)
        masses = ((np.arange(self.head) + 1 + q) / (1 + q)) ** -s
        self.power = 1 - s
        self.low = self.head + 0.5 + q
        self.log_range = math.log1p((rows - self.head) / self.low)
        tail = self.low * (self.low / (1 + q)) ** -s * float(self._integral(self.log_range))
        total = float(masses.sum()) + tail
        self.cumulative_head = np.cumsum(masses) / total
        self.head_share = float(self.cumulative_head[-1]) if tail else 1.0
        self.cumulative_head[-1] = self.head_share
        at_edges = np.searchsorted(self.cumulative_head, np.arange(_CELLS + 1) / _CELLS, side="right")
        self._guide = np.where(at_edges[1:] == at_edges[:-1], at_edges[:-1], -1)

    def ranks(self, uniforms: Floats) -> Ints:
        """Map uniforms in [0, 1) to ranks by inverting the cumulative law; the result has the same shape."""
        ranks: Ints = self._guide[(uniforms * _CELLS).astype(np.int64)]
        unsure = np.flatnonzero(ranks < 0)
        ranks[unsure] = np.searchsorted(self.cumulative_head, uniforms[unsure], side="right")
        if self.head < self.rows:
            behind = np.flatnonzero(ranks == self.head)
            ranks[behind] = self._tail_ranks(uniforms[behind])
        return ranks

    def cumulative(self, ranks: Ints) -> Floats:
        """Return the probability of a rank below each of `ranks`, which lie in [0, rows]."""
        head = np.concatenate([[0.0], self.cumulative_head])[np.minimum(ranks, self.head)]
        if self.head == self.rows:
            return head
        logs = np.log1p(np.maximum(ranks - self.head, 0) / self.low)
        return head + (1 - self.head_share) * self._integral(logs) / float(self._integral(self.log_range))

    def _integral(self, logs: float | Floats) -> Floats:
        """Integrate t ** -s over [1, exp(logs)]."""
        if abs(self.power) < 1e-12:
            return np.asarray(logs)
        return np.asarray(np.expm1(self.power * np.asarray(logs)) / self.power)

    def _tail_ranks(self, uniforms: Floats) -> Ints:
        """Map uniforms in [head share, 1) to the ranks behind the head."""
        part = (uniforms - self.head_share) / (1 - self.head_share)
        if abs(self.power) < 1e-12:
            logs = part * self.log_range
        else:
            logs = np.log1p(part * math.expm1(self.power * self.log_range)) / self.power
        ranks = self.head + (self.low * np.expm1(logs)).astype(np.int64)
        return np.minimum(ranks, self.rows - 1)


class _RangeLaw:
    """Rows with the shares of ranges, and a Zipf law over scattered rows inside each."""

    def __init__(self, ids: RangeIds, rows: int) -> None:
        shares = np.array(ids.shares)
        self._ends = np.cumsum(shares / shares.sum())
        self._shares = np.maximum(np.diff(self._ends, prepend=0.0), 1e-300)
        self._bounds = range_bounds(len(shares), rows)
        self._sizes = np.diff(self._bounds)
        self._last = int(np.flatnonzero(shares)[-1])
        # Equal ranges differ by one row at most.
        self._laws = {size: ZipfLaw(ids.s, ids.q, size) for size in np.unique(self._sizes).tolist()}

    def rows(self, uniforms: Floats) -> Ints:
        """Map uniforms in [0, 1) to rows, shape (n,)."""
        of_range = np.minimum(np.searchsorted(self._ends, uniforms, side="right"), self._last)
        inside = (uniforms - self._ends[of_range] + self._shares[of_range]) / self._shares[of_range]
        inside = np.clip(inside, 0.0, np.nextafter(1.0, 0.0))
        found: Ints = self._bounds[of_range].copy()
        for size, law in self._laws.items():
            chosen = np.flatnonzero(self._sizes[of_range] == size)
            found[chosen] += scatter_ranks(law.ranks(inside[chosen]), size)
        return found


#: Logarithms of the expected accesses of one row at which bins are tabulated; beyond them the nearest is used.
_LOG_RATES = np.linspace(np.log(1e-9), np.log(1e8), 8001)


def expected_row_shares(law: UniformIds | ZipfIds, rows: int, ids: float) -> tuple[float, ...]:
    """Return the expected reuse histogram of a table if a batch has this many ids; zeros without any."""
    s, q = (law.s, law.q) if isinstance(law, ZipfIds) else (0.0, 0.0)
    distinct = expected_counts(s, q, rows, ids)[0]
    total = float(distinct.sum())
    return tuple((distinct / total).tolist()) if ids > 0 and total > 0 else (0.0,) * REUSE_BINS


def expected_counts(s: float, q: float, rows: int, ids: float) -> Floats:
    """Return expected distinct rows and accesses per reuse bin, shape (2, 17).

    With Poisson bag sizes the accesses of every row are independent Poisson numbers, so the expectation is a sum over
    rows. Ranks behind the exact head are grouped on a logarithmic grid and share their mean rate.

    Args:
        s: exponent of the Zipf law.
        q: shift of the Zipf law.
        rows: rows of the table.
        ids: expected ids of the batch.
    """
    edges = _rank_edges(rows)
    widths = np.diff(edges)
    rates = np.maximum(ids * np.diff(ZipfLaw(s, q, rows).cumulative(edges)) / widths, 1e-9)
    position = np.clip((np.log(rates) - _LOG_RATES[0]) / (_LOG_RATES[1] - _LOG_RATES[0]), 0, _LOG_RATES.size - 1.001)
    low = position.astype(np.int64)
    above = (position - low)[:, None]
    shares = (1 - above) * _bins()[:, low] + above * _bins()[:, low + 1]
    result: Floats = np.einsum("kgb,kg->kb", shares, np.stack([widths, widths * rates]))
    return result


@functools.lru_cache(maxsize=1)
def _bins() -> Floats:
    """Tabulate, per rate, the probability of each bin and the share of the accesses in it, shape (2, rates, 17)."""
    from scipy import special  # scipy.stats has the same function, and takes half a second to import

    rates = np.exp(_LOG_RATES)[:, None]
    # A Poisson number is at most these with probability 0 for -1, and 1 for infinity.
    upper = 2.0 ** np.arange(REUSE_BINS - 1)
    ends = np.zeros((len(rates), 1)), np.ones((len(rates), 1))
    up_to = special.pdtr(upper, rates)
    below = special.pdtr(upper - 1, rates)
    at_0 = special.pdtr(0, rates)
    rows = np.diff(np.hstack([at_0, up_to, ends[1]]))
    accesses = np.diff(np.hstack([ends[0], below, ends[1]]))
    return np.stack([rows, accesses])


@functools.lru_cache(maxsize=256)
def _rank_edges(rows: int) -> Ints:
    head = np.arange(min(rows, HEAD_RANKS) + 1)
    if rows <= HEAD_RANKS:
        return head
    tail = np.geomspace(HEAD_RANKS, rows, 2 + int(12 * np.log(rows / HEAD_RANKS)))
    return np.unique(np.concatenate([head, np.rint(tail).astype(np.int64)]))
