"""Predictions of published rows by the GPU model: FBGEMM kernels, memory bandwidths, exchanges, row collectives."""

import contextlib
import dataclasses
import functools
import itertools
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rows import KERNELS, NotPredicted, Row

from shardgym.costs.gpu.cards import CARDS, STREAM_SHARE
from shardgym.costs.gpu.collectives import COLLECTIVES, CollectiveConstants, all_reduce_ms, reduce_scatter_ms
from shardgym.costs.gpu.exchange import LINKS, LinkConstants, ramp_ms
from shardgym.costs.gpu.host_memory import HOST, HostConstants, HostShards, host_ms, shard_work_with_host
from shardgym.costs.gpu.kernels import KERNELS as KERNEL_CONSTANTS
from shardgym.costs.gpu.kernels import KernelConstants, ShardSizes, Work, backward_ms, forward_ms, row_classes
from shardgym.tables.row_popularity import batches_kept, popularity
from shardgym.tables.table import EmbeddingTable, Optimizer, UniformIds, ZipfIds
from shardgym.tasks.task import OPTIMIZER_STATE
from shardgym.tasks.topology import Topology


@dataclass(frozen=True)
class Constants:
    """All that predictions depend on."""

    kernels: KernelConstants = KERNEL_CONSTANTS
    links: LinkConstants = LINKS
    collectives: CollectiveConstants = COLLECTIVES
    host: HostConstants = HOST
    stream_share: float = STREAM_SHARE  #: of the peak of a data sheet that a stream gets


def ratios(rows: Sequence[Row], constants: Constants, among: Sequence[Row]) -> dict[str, float]:
    """Return what is predicted over what is published by id, of the rows that the model says anything of.

    Ratios are of times, or of bandwidths where a source has no time. `among` are all rows, as those of a source tell of
    its machine.
    """
    kernels = [row for row in rows if row.kind in KERNELS and row.card in CARDS]
    phases = phases_us(kernels, constants.kernels, constants.host)
    found = collective_ratios([row for row in rows if row.kind == "collective"], constants.collectives)
    found |= {row.id: kernel_us(row, phases[row.id]) / row.time_us for row in kernels}
    for row in rows:
        with contextlib.suppress(NotPredicted):
            if row.kind == "memory":
                found[row.id] = memory_gbps(row, constants) / row.gbps
            elif row.kind == "exchange":
                us = exchange_us(row, among, constants.links)
                found[row.id] = us / row.time_us if row.time_us else exchange_of(row).busbw / us * 1e-3 / row.gbps
    return found


class Phases(NamedTuple):
    """Forward, backward, of it the update of rows in the GPU's memory, and of forward what goes over the bus, in us."""

    forward: float
    backward: float
    update: float
    fetch: float


def kernel_us(row: Row, phases: Phases) -> float:
    """Return the time of a kernel of FBGEMM in us."""
    if row.op.startswith("prefetch"):
        return phases.fetch
    if row.op.startswith("fwd+bwd"):
        return phases.forward + phases.backward
    return phases.backward if row.backward else phases.forward


def phases_us(
    rows: Sequence[Row], kernels: KernelConstants = KERNEL_CONSTANTS, host: HostConstants = HOST
) -> dict[str, Phases]:
    """Return the phases of kernels by id, those of a card together."""
    alike: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.card, _sizes(row).pooled), []).append(row)
    found: dict[str, Phases] = {}
    for (card, pooled), group in alike.items():
        tables = np.array([row.tables for row in group])
        sizes = _joined(tuple(group), pooled)
        in_host = np.array([row.kind in ("host memory", "cached") for row in group])
        fetched = np.array([_missed_share(row) if row.kind == "cached" else 0.0 for row in group])
        bypassed = np.array([float(row.kind == "host memory") for row in group])
        shards = HostShards(in_host, fetched, bypassed, bypassed, CARDS[card].host)
        work = shard_work_with_host(CARDS[card], sizes, shards, kernels, host) * tables[:, None]
        passes = np.stack([forward_ms(work, tables, kernels), backward_ms(work, kernels)], axis=-1)
        passes = passes + host_ms(work, host)
        times = 1e3 * np.stack([*passes.T, work[:, Work.UPDATES], work[:, Work.HOST_FORWARD]])
        found.update(zip((row.id for row in group), itertools.starmap(Phases, times.T.tolist()), strict=True))
    return found


@functools.lru_cache(maxsize=256)
def _joined(rows: tuple[Row, ...], pooled: bool) -> ShardSizes:
    sizes = [_sizes(row) for row in rows]
    names = [field.name for field in dataclasses.fields(ShardSizes) if field.name != "pooled"]
    return ShardSizes(**{name: np.concatenate([getattr(s, name) for s in sizes]) for name in names}, pooled=pooled)


@functools.lru_cache(maxsize=1024)
def _sizes(row: Row) -> ShardSizes:
    """Return the sizes of one of a row's tables, which are all alike."""
    table = table_of(row)
    touched, accesses = row_classes(table, int(row.bags))
    if row.unique:  # the source counted them
        factor = row.unique / row.tables / touched.sum()
        touched = touched * factor
        accesses = np.maximum(accesses / factor, 1.0)
    per_weight, per_row = OPTIMIZER_STATE[optimizer_of(row)]
    width = row.columns * row.element_bytes
    one = functools.partial(np.full, 1)
    return ShardSizes(
        bags=one(row.bags), ids=one(row.bags * row.pooling), rows=one(row.rows * row.tables), width_bytes=one(width),
        state_bytes=one(4.0 * (per_weight * row.columns + per_row)), output_bytes=one(row.columns * 4.0),
        touched=touched[None], accesses=accesses[None], id_bytes=one(8.0), pooled="nobag" not in row.op,
    )  # fmt: skip


def table_of(row: Row) -> EmbeddingTable:
    """Return one of a row's tables, which are all alike."""
    law = ZipfIds(s=1.05) if "alpha 1.05" in row.ids else UniformIds()
    return EmbeddingTable("table", int(row.rows), round(row.columns), row.pooling, law)


@functools.lru_cache(maxsize=1024)
def _missed_share(row: Row) -> float:
    """Return which part of a batch's distinct rows a cache lacks, on average over a run that starts empty."""
    if exchanged := re.search(r"([\d.]+) exchanged cache lines", row.note):
        return float(exchanged[1]) / (float(_sizes(row).touched.sum()) * row.tables)
    cells = popularity(table_of(row), int(row.bags))
    draws = row.bags * row.pooling
    expected = draws * cells.rates
    touched = cells.sizes * -np.expm1(-expected)
    kept = batches_kept(cells, draws, row.cache_share * row.rows)
    # In batch k the cache has the rows of all batches before, or of the last ones that it has room for.
    missed = [float((touched * np.exp(-expected * min(batch, kept))).sum()) for batch in range(row.batches)]
    return statistics.fmean(missed) / float(touched.sum())


def optimizer_of(row: Row) -> Optimizer:
    """Return the optimiser of a kernel, which is FBGEMM's default one where none is named."""
    if "adam" in row.optimizer:
        return "adam"
    if "sgd" in row.optimizer:
        return "exact_sgd"
    return "adagrad" if "exact_adagrad" in row.optimizer else "rowwise_adagrad"


#: Peaks of memory by data sheet, 10**9 bytes per second, by what rows say of the GPU.
_PEAKS = (
    (r"2080 Ti", 616), (r"^V100", 900), (r"A100.40GB", 1555), (r"A100.80GB", 2039), (r"H100 PCIe", 2039),
    (r"2\.40 TB/s", 2400), (r"H100", 3350), (r"H200", 4800),
)  # fmt: skip


def memory_gbps(row: Row, constants: Constants) -> float:
    """Return the bandwidth of a stream or of gathered rows; raises `NotPredicted` for other figures."""
    peak = next((peak for pattern, peak in _PEAKS if re.search(pattern, row.gpu)), None)
    if row.op.startswith("fit used"):
        raise NotPredicted("a fit of another model, not a measurement")
    if peak is None or not row.gbps or row.op.startswith("L2") or re.search(r"\d MB working set", row.ids):
        raise NotPredicted("latencies, launches and bandwidths of the L2 alone are not modelled")
    share = constants.kernels.gather_share if row.op.startswith(("gather_", "scatter_")) else 1.0
    return peak * constants.stream_share * share


#: Links by what rows say of the GPU: NVLink and network card, 10**9 bytes per second of each GPU and direction, by the
#: data sheets. 0 where a source does not say: then the rate follows from its largest message, which is not counted.
_LINKS = (
    (r"GB300", 900, 100),
    (r"B200", 900, 50),
    (r"H20-3e", 450, 0),
    (r"H800", 200, 50),
    (r"RTX 6000D", 63, 0),
    (r"H200|H100", 450, 50),
    (r"EFA", 450, 50),
    (r"A100", 300, 25),
    (r"V100", 150, 12.5),
    (r"2080 Ti", 15.75, 1.25),
)
#: Bytes that DeepEP's low-latency kernels send per GPU at one byte per value: tokens x experts x width.
_DEEPEP_BYTES = 128 * 8 * 7168
_DEEPEP_DOMAIN = 8


class Exchange(NamedTuple):
    """Bytes that each GPU sends in an exchange."""

    fast: float  #: over NVLink
    slow: float  #: over the network
    message: float  #: to each peer
    busbw: float  #: that count for the bandwidth that a source prints


@functools.lru_cache(maxsize=1024)
def exchange_of(row: Row) -> Exchange:
    """Return what GPUs send; raises `NotPredicted` where that is not known."""
    if row.op.startswith(("DeepEP V1 dispatch", "DeepEP V1 combine")):
        peak = 1e12  # a bandwidth: of so large a message
        return Exchange(peak, 0.0, peak, peak) if row.ranks <= _DEEPEP_DOMAIN else Exchange(0.0, peak, peak, peak)
    if row.op.startswith("p2p"):  # without peer access the copy goes over the host: up and down
        return Exchange(2e12, 0.0, 1e12, 1e12)
    ranks = row.ranks
    domain = row.domain
    size = row.message_bytes or 1e12
    if "low-latency" in row.op:
        domain = min(_DEEPEP_DOMAIN, ranks)
        size = float(_DEEPEP_BYTES * row.element_bytes)
    if row.op.startswith("ib_write"):
        return Exchange(0.0, size, size, size)
    if row.op.startswith("sendrecv"):
        return Exchange(size, 0.0, size, size)
    others = size * (ranks - 1) / ranks
    if row.op.startswith("all_reduce"):
        return Exchange(2 * others, 0.0, size / ranks, 2 * others)
    return Exchange(size * (domain - 1) / ranks, size * (ranks - domain) / ranks, size / ranks, others)


@functools.lru_cache(maxsize=1024)
def rates_of(row: Row) -> tuple[float, float]:
    """Return NVLink's and the network card's bandwidth in bytes per second; `NotPredicted` where nothing is known."""
    found = next(((fast, slow) for pattern, fast, slow in _LINKS if re.search(pattern, row.gpu)), None)
    if found is None:
        raise NotPredicted("its links are unknown")
    if stated := re.search(r"(\d+) cards of ([\d.]+) GB/s a node", row.note):
        return found[0] * 1e9, float(stated[1]) * float(stated[2]) * 1e9 / row.domain
    cards = row.domain if "1 HCA only" in row.note else 1
    return found[0] * 1e9, found[1] * 1e9 / cards


def exchange_us(row: Row, rows: Sequence[Row], links: LinkConstants) -> float:
    """Return the time of an exchange in us; raises `NotPredicted` where nothing is known of its links.

    Where a source does not say how fast its network is, its largest exchange does.
    """
    fast, slow = rates_of(row)
    sent = exchange_of(row)
    if not slow and sent.slow:
        largest = max((r for r in rows if r.source == row.source), key=lambda r: exchange_of(r).message)
        if row is largest:
            raise NotPredicted("gives the bandwidth of the network, which the source does not say")
        of_largest = exchange_of(largest)
        fixed_us = links.slow_floor_us + 1e3 * float(ramp_ms(np.float64(of_largest.message), links))
        slow = of_largest.slow / (largest.time_us - fixed_us) * 1e6 / links.slow_share
    times = [
        floor + 1e6 * sent_bytes / (bandwidth * share)
        for floor, sent_bytes, bandwidth, share in (
            (links.fast_floor_us, sent.fast, fast, links.fast_share),
            (links.slow_floor_us, sent.slow, slow, links.slow_share),
        )
        if sent_bytes
    ]
    return max(times) + 1e3 * float(ramp_ms(np.float64(sent.message), links))


@functools.lru_cache(maxsize=1024)
def topology_of(row: Row) -> Topology:
    """Return the devices and links of a row collective; raises `NotPredicted` where its network is not known."""
    fast, slow = rates_of(row)
    if "rate of the network not stated" in row.note:
        raise NotPredicted("its source does not say how fast its network is")
    return Topology(
        num_devices=row.ranks, memory_bytes=1, fast_domain_size=row.domain, intra_bandwidth=fast, inter_bandwidth=slow
    )


def collective_ratios(rows: Sequence[Row], constants: CollectiveConstants) -> dict[str, float]:
    """Return what is predicted of row collectives over what is published, by id; see `ratios`."""
    found: dict[str, float] = {}
    alike: dict[tuple[bool, Topology], list[Row]] = {}
    for row in rows:
        with contextlib.suppress(NotPredicted):
            alike.setdefault((row.op.startswith("all_reduce"), topology_of(row)), []).append(row)
    for (reduced, topology), group in alike.items():
        # Where a source has no size, it is so large that nothing else counts.
        sizes = np.array([row.message_bytes or 1e12 for row in group])
        times = (all_reduce_ms if reduced else reduce_scatter_ms)(topology, sizes, constants)
        counted = sizes * (2 if reduced else 1) * (topology.num_devices - 1) / topology.num_devices
        for row, ms, count in zip(group, times.tolist(), counted.tolist(), strict=True):
            found[row.id] = ms * 1e3 / row.time_us if row.time_us else count / ms * 1e-6 / row.gbps
    return found
