"""What FBGEMM's fused embedding kernels do on a GPU, as amounts of work, and how long that takes.

Forward, a group of threads takes a bag, reads its ids, fetches a row per id and writes the pooled row. Four things can
hold this up, and each alone would take a time that is proportional to an amount of work, which is a sum over shards:

- *memory*: rows that are not in the L2 cache (`missed_accesses`), ids, offsets and pooled rows cross the memory bus;
- *L2*: every row that is read crosses the L2 cache, in sectors of 32 bytes;
- *lookups*: every lookup and every bag takes its turn on a multiprocessor, however narrow the row;
- *chain*: the ids of one bag are read one after the other, which matters where a batch has few bags.

They overlap, though not fully: the time is their p-norm. A p-norm is at most the sum of its parts, so a fused kernel is
never slower than its tables one by one, and it also saves launches.

Backward sorts all ids of the device, reads the gradient of every lookup, and reads and writes every distinct row and
its optimiser state. Phases follow each other, and their times add up.

Rates are shares of what a card can do (`cards.py`), the same for all cards: `KernelConstants`. Five of them are fitted
to published measurements by `python benchmarks/published_gpu/run.py --fit`.
"""

import functools
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.gpu.cards import Card
from shardgym.tables.row_access import BIN_ACCESSES, Cells, access_share, cells_of, distinct_rows, position_matters
from shardgym.tables.table import REUSE_BINS, EmbeddingTable, RangeIds, ZipfIds

#: Smallest number of bytes that crosses a bus of the GPU.
SECTOR = 32
ID_BYTES = 8
#: Read per bag in addition to ids: two offsets.
_OFFSET_BYTES = 16
#: Bytes that a radix sort moves per id besides its passes: linearise, histogram, run-length encode; and per pass, with
#: 8-byte keys and 4-byte values, each read and written.
_SORT_BYTES = 52
_PASS_BYTES = 24
_BITS_PER_PASS = 8
#: Threads that a multiprocessor keeps in flight for these kernels; 32 of them take a bag of rows of 128 columns.
_THREADS_IN_FLIGHT = 1536
#: Exponent under which the longest chain of several shards is taken, so that it follows from a sum.
_CHAIN_NORM = 8
#: Halvings of the interval of t in `missed_accesses`; the last one is a millionth of the first.
_STEPS = 40
#: Steps by which a class of popularity ranks is integrated.
_OCTAVES = 64


@dataclass(frozen=True)
class KernelConstants:
    """Shares of what a card can do, and times that all cards share.

    The L2's bandwidth and share are those of owensgroup/ml_perf_model (analysis/utils.py: 2,270.9 GB/s of an A100, rows
    in nine tenths of the cache), launches are published for A100 and H200 (te42kyfo/gpu-benches, gpu-small-kernels).
    Norm, chain and numbers of kernels are ours.
    """

    norm: float = 3.0  #: exponent p of the overlap of memory, L2, lookups and chain
    gather_share: float = 0.921  #: bandwidth of random rows over that of a stream; fitted
    update_share: float = 0.591  #: bandwidth of scattered reads and writes over that of a stream; fitted
    sort_share: float = 0.25  #: bandwidth of the sort over that of a stream; fitted
    l2_bytes_per_clock: float = 14.9  #: that a multiprocessor fetches from the L2 cache
    l2_share: float = 0.9  #: of the L2 cache that holds rows
    lookup_clocks: float = 5.17  #: of a multiprocessor per lookup; fitted
    bag_clocks: float = 24.4  #: of a multiprocessor per bag; fitted
    chain_us: float = 1.0  #: time from the start of a bag to its first row
    chain_lookup_us: float = 0.1  #: time per further lookup of the bag
    launch_us: float = 2.5  #: of one kernel after the other
    forward_launches: float = 2.0  #: kernels of the forward pass
    backward_launches: float = 18.0  #: kernels of the backward pass


KERNELS = KernelConstants()


class Work(IntEnum):
    """What a shard adds to the sum over its device, by column; ms unless said otherwise."""

    MEMORY_ALONE = 0  #: with the whole L2 cache for the rows of one table
    MEMORY_CROWDED = 1  #: with as many tables in flight as a batch lets in
    L2 = 2
    LOOKUPS = 3
    CHAIN = 4  #: to the power of `_CHAIN_NORM`
    GRADIENTS = 5
    UPDATES = 6
    SORT = 7  #: for one pass
    SORT_FIXED = 8  #: besides passes
    ROWS = 9  #: of weights: how many bits ids have
    CROWD = 10  #: tables in flight if the device has enough of them, a number
    HOST_FORWARD = 11  #: of rows in the memory of the host, see `host_memory.py`
    HOST_BACKWARD = 12
    HOST_SHARDS = 13  #: those with rows in the memory of the host, a number


@dataclass(frozen=True)
class ShardSizes:
    """Sizes of n shards, each of shape (n,) unless said otherwise."""

    bags: Floats  #: of the batch, a sample's for each feature of the table
    ids: Floats  #: lookups of the batch
    rows: Floats
    width_bytes: Floats  #: of a row
    state_bytes: Floats  #: of the optimiser state of a row
    output_bytes: Floats  #: of a pooled row
    touched: Floats  #: distinct rows by class, shape (n, classes)
    accesses: Floats  #: to each of these rows, shape (n, classes)
    id_bytes: Floats  #: of an id, with its weight if it has one
    #: Whether a bag has one output row; otherwise every lookup has one. One for all, or shape (n,).
    pooled: Bools | bool = True


def sectors(width_bytes: Floats) -> Floats:
    """Round bytes up to whole sectors."""
    return np.asarray(np.ceil(width_bytes / SECTOR) * SECTOR, dtype=np.float64)


def shard_work(card: Card, sizes: ShardSizes, kernels: KernelConstants = KERNELS) -> Floats:
    """Return what shards add to the sums of `forward_ms` and `backward_ms`, shape (n, len(Work))."""
    bags = sizes.bags
    ids = sizes.ids
    stream_ms = 1e3 / card.memory_bandwidth
    l2_ms = 1e3 / (kernels.l2_bytes_per_clock * card.sm_clocks)
    clock_ms = 1e3 / card.sm_clocks
    row_bytes = sectors(sizes.width_bytes)
    outputs = np.where(sizes.pooled, bags, ids)
    streamed = ids * sizes.id_bytes + bags * _OFFSET_BYTES + outputs * sizes.output_bytes
    distinct = sizes.touched.sum(axis=1)
    cache = kernels.l2_share * card.l2_bytes / np.maximum(row_bytes, 1.0)

    # Bags are taken table by table, so tables share the cache only where a batch has fewer bags than are in flight.
    threads_of_bag = np.clip(2 ** np.ceil(np.log2(np.maximum(sizes.width_bytes / 16, 1))), 8, 32)
    in_flight = card.sms * _THREADS_IN_FLIGHT / threads_of_bag
    crowd = np.maximum(in_flight / np.maximum(outputs, 1.0), 1.0)

    work = np.zeros((len(bags), len(Work)))
    missed = missed_accesses(sizes.touched, sizes.accesses, cache)
    work[:, Work.MEMORY_ALONE] = (missed * row_bytes / kernels.gather_share + streamed) * stream_ms
    if (crowd > 1).any():
        missed = missed_accesses(sizes.touched, sizes.accesses, cache / crowd)
    work[:, Work.MEMORY_CROWDED] = (missed * row_bytes / kernels.gather_share + streamed) * stream_ms
    work[:, Work.L2] = (ids * row_bytes + streamed) * l2_ms
    # Without pooling, threads take lookups one after the other, whatever bag they are of.
    bag_clocks = np.where(sizes.pooled, bags * kernels.bag_clocks, 0.0)
    work[:, Work.LOOKUPS] = (ids * kernels.lookup_clocks + bag_clocks) * clock_ms
    length = ids / np.maximum(outputs, 1.0)
    chain_ms = (kernels.chain_us + length * kernels.chain_lookup_us) * 1e-3
    work[:, Work.CHAIN] = chain_ms**_CHAIN_NORM

    # Sorted by row, lookups read gradients of bags in random order; each is read from memory once at least.
    firsts = np.minimum(ids, outputs)
    repeats = np.maximum(ids - firsts, 0.0)
    gradient_bytes = sectors(sizes.output_bytes)
    hit_share = np.minimum(1.0, kernels.l2_share * card.l2_bytes / np.maximum(firsts * gradient_bytes, 1.0))
    read = (firsts + repeats * (1 - hit_share)) * gradient_bytes
    work[:, Work.GRADIENTS] = np.maximum(read / kernels.gather_share * stream_ms, ids * gradient_bytes * l2_ms)
    updated = row_bytes + np.where(sizes.state_bytes > 0, sectors(sizes.state_bytes), 0.0)
    work[:, Work.UPDATES] = 2 * distinct * updated / kernels.update_share * stream_ms
    work[:, Work.SORT] = ids * _PASS_BYTES / kernels.sort_share * stream_ms
    work[:, Work.SORT_FIXED] = ids * (_SORT_BYTES + sizes.id_bytes - ID_BYTES) / kernels.sort_share * stream_ms
    work[:, Work.ROWS] = sizes.rows
    work[:, Work.CROWD] = crowd
    return work


def forward_ms(sums: Floats, counts: Floats, kernels: KernelConstants = KERNELS) -> Floats:
    """Return the forward pass of devices in ms, shape (...).

    Args:
        sums: sums of what `shard_work` says of the shards of each device, shape (..., len(Work)).
        counts: shards of each device, at least 1, shape (...).
        kernels: shares and times of all cards.
    """
    crowd = np.maximum(sums[..., Work.CROWD] / counts, 1.0)
    # Between one table and a full crowd, what is missed goes with the share of the cache that a table has.
    lone = np.maximum(1 / np.minimum(counts, crowd) - 1 / crowd, 0.0) / np.maximum(1 - 1 / crowd, 1e-12)
    crowded = np.where(crowd > 1, 1 - lone, 0.0)
    memory = sums[..., Work.MEMORY_ALONE]
    memory = memory + crowded * (sums[..., Work.MEMORY_CROWDED] - memory)
    chain = sums[..., Work.CHAIN] ** (1 / _CHAIN_NORM)
    p = kernels.norm
    busy = (memory**p + sums[..., Work.L2] ** p + sums[..., Work.LOOKUPS] ** p + chain**p) ** (1 / p)
    return np.asarray(busy + kernels.forward_launches * kernels.launch_us * 1e-3, dtype=np.float64)


def backward_ms(sums: Floats, kernels: KernelConstants = KERNELS) -> Floats:
    """Return the backward pass of devices in ms, shape (...); arguments as `forward_ms`."""
    sort = sums[..., Work.SORT_FIXED] + _sort_passes(sums) * sums[..., Work.SORT]
    busy = sort + sums[..., Work.GRADIENTS] + sums[..., Work.UPDATES] + sums[..., Work.CHAIN] ** (1 / _CHAIN_NORM)
    return np.asarray(busy + kernels.backward_launches * kernels.launch_us * 1e-3, dtype=np.float64)


def _sort_passes(sums: Floats) -> Floats:
    bits = np.ceil(np.log2(np.maximum(sums[..., Work.ROWS], 2.0)))
    return np.asarray(np.ceil(bits / _BITS_PER_PASS), dtype=np.float64)


def least_ms(work: Floats, typical: Floats, kernels: KernelConstants = KERNELS) -> Floats:
    """Return times of shards that add up to no more than what their device takes without launches, shape (n, 2).

    A p-norm lies above its tangents, which are sums: here that in a typical point. Rows are sorted in at least as many
    passes as those of one shard. Chains, and caches that tables share, are left out.

    Args:
        work: work of shards, shape (n, len(Work)).
        typical: work in proportions in which the forward bound is tight, shape (len(Work),).
        kernels: shares and times of all cards.
    """
    overlapping = [Work.MEMORY_ALONE, Work.L2, Work.LOOKUPS]
    p = kernels.norm
    shares = typical[overlapping] / max(float((typical[overlapping] ** p).sum() ** (1 / p)), 1e-300)
    forward = work[:, overlapping] @ shares ** (p - 1)
    sort = work[:, Work.SORT_FIXED] + _sort_passes(work) * work[:, Work.SORT]
    return np.stack([forward, sort + work[:, Work.GRADIENTS] + work[:, Work.UPDATES]], axis=1)


def row_classes(
    table: EmbeddingTable, batch_size: int, start: int = 0, stop: int | None = None
) -> tuple[Floats, Floats]:
    """Return the distinct rows that one batch touches, by how often it touches them.

    A reuse histogram is taken as it is, scaled to the ids of the batch. Otherwise rows are those of the table's
    distribution; recorded ids without a histogram count as uniform. A range of rows has the table's mix of them, as
    many as it is expected to touch, each looked up as much more or less often as lookups of the range say.

    Returns:
        Rows and accesses per row, both of shape (17,); rows x accesses add up to the ids of the batch.
    """
    stop = table.num_embeddings if stop is None else stop
    rows, accesses = _table_classes(table, batch_size)
    if not position_matters(table) or stop - start == table.num_embeddings or not rows.any():
        return rows * ((stop - start) / table.num_embeddings), accesses
    part = distinct_rows(table, batch_size, start, stop) / distinct_rows(table, batch_size)
    ids = batch_size * table.pooling_factor * access_share(table, start, stop)
    return rows * part, matched(rows * part, accesses, ids)


@functools.lru_cache(maxsize=65536)  # tasks are drawn from the same few tables again and again
def _table_classes(table: EmbeddingTable, batch_size: int) -> tuple[Floats, Floats]:
    """Return the same of all rows."""
    rows: Floats = np.zeros(REUSE_BINS)
    accesses: Floats = np.ones(REUSE_BINS)
    ids = batch_size * table.pooling_factor
    if ids <= 0:
        return rows, accesses
    distinct = distinct_rows(table, batch_size)
    if table.reuse_histogram is not None and any(table.reuse_histogram):
        shares = np.array(table.reuse_histogram)
        rows = distinct * shares / shares.sum()
        accesses = np.array(BIN_ACCESSES)
    elif isinstance(table.ids, ZipfIds):
        rows, accesses = _zipf_classes(table.ids, table.num_embeddings, ids / table.run_length)
    elif isinstance(table.ids, RangeIds):
        rows, accesses = _binned(cells_of(table.ids, table.num_embeddings), ids / table.run_length)
    else:
        rows[0] = distinct
    return rows, matched(rows, accesses, ids)


def matched(rows: Floats, accesses: Floats, ids: float) -> Floats:
    """Return accesses that add up to `ids`, the ids of a batch: bins know them to a factor of 2 only.

    Rows of each class are not all 0, accesses to each of them are at least 1; both have the shape (17,).
    """
    total = float(rows.sum())
    repeats = float(rows @ (accesses - 1))
    wanted = max(ids - total, 0.0)
    if repeats > 0:
        return 1 + (accesses - 1) * wanted / repeats
    return accesses + wanted / total if total > 0 else accesses


def _binned(cells: Cells, ids: float) -> tuple[Floats, Floats]:
    """Return touched rows and accesses per reuse bin, each of shape (17,), of a number of ids."""
    lookups = ids * cells.masses
    touched = cells.sizes * -np.expm1(-ids * cells.rates)
    accesses = np.divide(lookups, touched, out=np.ones(len(touched)), where=touched > 0)
    bins = np.clip(np.rint(np.log2(np.maximum(accesses, 1.0))), 0, REUSE_BINS - 1).astype(np.int64)
    rows = np.bincount(bins, weights=touched, minlength=REUSE_BINS).astype(np.float64)
    of_bins = np.bincount(bins, weights=lookups, minlength=REUSE_BINS)
    found: Floats = np.divide(of_bins, rows, out=np.ones(REUSE_BINS), where=rows > 0)
    return rows, np.maximum(found, 1.0)


def _zipf_classes(law: ZipfIds, rows: int, ids: float) -> tuple[Floats, Floats]:
    """Cut popularity ranks into 17 classes of similar popularity; return touched rows and accesses of each."""
    edges = np.unique(np.floor(np.geomspace(1, rows + 1, REUSE_BINS + 1)).astype(np.int64)) - 1
    sizes = np.diff(edges).astype(np.float64)
    finer = np.geomspace(edges[:-1] + 1, edges[1:] + 1, _OCTAVES + 1) - 1
    middles = (finer[1:] + finer[:-1]) / 2
    masses = (np.diff(finer, axis=0) * (middles + 0.5 + law.q) ** -law.s).sum(axis=0)
    expected = ids * masses / masses.sum() / sizes
    touched = sizes * -np.expm1(-expected)
    found = np.zeros((2, REUSE_BINS))
    found[0, : len(sizes)] = touched
    found[1, : len(sizes)] = np.divide(expected * sizes, touched, out=np.ones(len(sizes)), where=touched > 0)
    return found[0], np.maximum(found[1], 1.0)


def missed_accesses(rows: Floats, accesses: Floats, capacity: Floats) -> Floats:
    """Return how many accesses do not find their row in the cache; the first access to a row never does.

    By Che's approximation of a cache that drops the oldest row. A row with a accesses per batch is still in the cache
    at its next access if that comes within the time t after which a row is dropped; with independent accesses that has
    the probability 1 - exp(-a t). The cache is full when the expected number of rows within t is its capacity, from
    which t follows (Che, Tung and Wang, "Hierarchical Web caching systems", IEEE JSAC 2002). For uniform ids this is
    the share of the table that fits.

    Of each class there are distinct rows, and accesses to each of these, at least 1, shapes (n, classes); the cache
    holds so many rows, shape (n,). What is returned, (n,), is at least the distinct rows, and at most all accesses.
    """
    low = np.zeros(len(rows))
    high = np.full(len(rows), 50.0)  # exp(-50) is nothing: by then every row that is touched was in the cache
    for _ in range(_STEPS):
        middle = (low + high) / 2
        held = (rows * -np.expm1(-accesses * middle[:, None])).sum(axis=1)
        fits = held <= capacity
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle)
    repeats = rows * (accesses - 1) * np.exp(-accesses * low[:, None])
    return np.asarray(rows.sum(axis=1) + repeats.sum(axis=1), dtype=np.float64)
