"""Constants of named devices for the analytic cost.

`cpu-core` was fitted to the shard sets that ship with the simulator; `python tools/fit_device_constants.py` does it
again, and does the same for a GPU's data. It is off by 12 % on average on sets of tables that the fit has not seen.

Of the GPUs, memory bandwidths and cache sizes are data-sheet peaks, cache bandwidths come from the vendors'
architecture papers where they give them. None of these figures were measured here: they rank plans, they do not predict
a kernel's time, and their overheads are orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardgym.errors import UnknownNameError


@dataclass(frozen=True)
class DeviceConstants:
    """What the analytic cost knows about one device.

    Attributes:
        memory_bandwidth: bytes per second of reads and of streaming writes.
        update_bandwidth: bytes per second of scattered read-modify-writes, reads and writes both counted.
        cache_bytes: capacity of the cache that keeps rows which a batch touches again.
        cache_bandwidth: bytes per second out of that cache.
        access_bytes: least that one row access moves; narrower rows cost as much.
        row_access_ns: latency of a row that is not in the cache, as far as other accesses do not hide it.
        lookup_ns: work per id that does not depend on the width, as far as other work does not hide it.
        forward_ms: fixed cost of a device that holds any table: kernel launches and host work.
        backward_ms: likewise for the backward pass, which sorts ids before it updates rows.
        table_ms: fixed cost of every shard, in each direction.
        source: where the figures come from.
    """

    memory_bandwidth: float
    update_bandwidth: float
    cache_bytes: int
    cache_bandwidth: float
    access_bytes: int
    row_access_ns: float
    lookup_ns: float
    forward_ms: float
    backward_ms: float
    table_ms: float
    source: str


def _gpu(memory_bandwidth: float, cache_bytes: int, cache_bandwidth: float, source: str) -> DeviceConstants:
    """GPUs hide latency behind other warps and move 32-byte sectors; a launch takes about 5 microseconds."""
    return DeviceConstants(
        memory_bandwidth, memory_bandwidth, cache_bytes, cache_bandwidth, access_bytes=32,
        row_access_ns=0.0, lookup_ns=0.0, forward_ms=0.03, backward_ms=0.1, table_ms=0.001, source=source,
    )  # fmt: skip


MIB = 2**20

DEVICES: dict[str, DeviceConstants] = {
    "cpu-core": DeviceConstants(
        13.2e9, 6.59e9, 21_700_000, 49.9e9, access_bytes=64,
        row_access_ns=5.29, lookup_ns=0.0, forward_ms=0.0733, backward_ms=0.00261, table_ms=0.0456,
        source="fitted to 6,568 shard sets measured on cpu-amd-epyc-2c (FP32, exact SGD, batch 8,192, one core)",
    ),
    "rtx-2080-ti": _gpu(
        616e9, 5632 * 1024, 1.6e12,
        "NVIDIA Turing architecture whitepaper (TU102); cache bandwidth assumed, 1,024 bytes per clock at 1.55 GHz",
    ),
    "v100": _gpu(
        900e9, 6 * MIB, 3.1e12,
        "NVIDIA V100 data sheet (SXM2); cache: A100 whitepaper's 2,048 bytes per clock at 1.53 GHz",
    ),
    "a100": _gpu(
        2.039e12, 40 * MIB, 7.2e12,
        "NVIDIA A100 data sheet (SXM, 80 GB); cache: A100 whitepaper's 5,120 bytes per clock at 1.41 GHz",
    ),
    "h100": _gpu(
        3.35e12, 50 * MIB, 9.0e12,
        "NVIDIA H100 data sheet (SXM); cache bandwidth assumed, 5,120 bytes per clock at 1.755 GHz",
    ),
    "h200": _gpu(
        4.8e12, 50 * MIB, 9.0e12,
        "NVIDIA H200 data sheet (SXM); cache bandwidth assumed, as for the H100",
    ),
}  # fmt: skip


def device_constants(name: str) -> DeviceConstants:
    """Return the constants of a device.

    Raises:
        UnknownNameError: no such device; the closest names are given.
    """
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    return DEVICES[name]
