"""Constants of devices, which `roofline` and `replay` price compute with."""

from __future__ import annotations

from dataclasses import dataclass

from shardgym.errors import UnknownNameError


@dataclass(frozen=True)
class DeviceConstants:
    """Constants of one device."""

    #: Bytes per second of reads and of streaming writes.
    memory_bandwidth: float
    #: Bytes per second of scattered read-modify-writes, reads and writes both counted.
    update_bandwidth: float
    #: Capacity of the cache for rows that a batch touches again.
    cache_bytes: int
    #: Bytes per second out of that cache.
    cache_bandwidth: float
    #: Smallest number of bytes that a row access moves; narrower rows cost as much.
    access_bytes: int
    #: Latency of a row that is not in the cache, as far as other accesses do not hide it.
    row_access_ns: float
    #: Work per id that does not depend on the width, as far as other work does not hide it.
    lookup_ns: float
    #: Fixed cost of a device that holds any table: kernel launches and host work.
    forward_ms: float
    #: Likewise for the backward pass, which sorts ids before it updates rows.
    backward_ms: float
    #: Fixed cost of every shard, in each direction.
    table_ms: float
    #: Bytes per second of long streams, as of dense gradients.
    stream_bandwidth: float
    source: str
    #: Bytes per second to the memory of the host in one direction, PCIe by the data sheet; 0 where there is no bus.
    host_bandwidth: float = 0.0
    #: Of a dense update, see `dense_update_bytes`.
    dense_passes: int = 4
    #: Bytes per second at which the system hands out memory; 0 where what was freed is kept.
    fresh_bandwidth: float = 0.0
    #: Work per element that Adagrad updates: a square root and a division.
    adagrad_ns: float = 0.0
    #: Work per distinct row of an unpooled table, whose gradients are added up.
    unpooled_row_ns: float = 0.0


def _gpu(
    memory_bandwidth: float, cache_bytes: int, cache_bandwidth: float, host_bandwidth: float, source: str
) -> DeviceConstants:
    """GPUs hide latency behind other warps and move 32-byte sectors; a launch takes about 5 microseconds."""
    return DeviceConstants(
        memory_bandwidth, memory_bandwidth, cache_bytes, cache_bandwidth, access_bytes=32,
        row_access_ns=0.0, lookup_ns=0.0, forward_ms=0.03, backward_ms=0.1, table_ms=0.001,
        stream_bandwidth=memory_bandwidth, source=source, host_bandwidth=host_bandwidth,
    )  # fmt: skip


MIB = 2**20

#: `cpu-core` was fitted to the shard sets that ship with the simulator, and is off by 12 % on average on sets of tables
#: that the fit has not seen.
#: Of the GPUs, memory bandwidths and cache sizes are data-sheet peaks, cache bandwidths come from the vendors'
#: architecture papers where they give them. None of these figures were measured here: they rank plans, they do not
#: predict a kernel's time, and their overheads are orders of magnitude.
DEVICES: dict[str, DeviceConstants] = {
    "cpu-core": DeviceConstants(
        13.2e9, 6.59e9, 21_700_000, 49.9e9, access_bytes=64,
        row_access_ns=5.29, lookup_ns=0.0, forward_ms=0.0733, backward_ms=0.00261, table_ms=0.0456,
        stream_bandwidth=25e9, dense_passes=6, fresh_bandwidth=2.4e9, adagrad_ns=5.0, unpooled_row_ns=2800.0,
        source="fitted to 6,568 shard sets measured on cpu-amd-epyc-2c (FP32, exact SGD, batch 8,192, one core); dense "
        "updates, Adagrad and unpooled tables: FBGEMM 1.8 alone on a core of cpu-amd-family25-model17",
    ),
    "rtx-2080-ti": _gpu(
        616e9, 5632 * 1024, 1.6e12, 15.75e9,
        "NVIDIA Turing architecture whitepaper (TU102); cache bandwidth assumed, 1,024 bytes per clock at 1.55 GHz",
    ),
    "v100": _gpu(
        900e9, 6 * MIB, 3.1e12, 15.75e9,
        "NVIDIA V100 data sheet (SXM2); cache: A100 whitepaper's 2,048 bytes per clock at 1.53 GHz",
    ),
    "a100": _gpu(
        2.039e12, 40 * MIB, 7.2e12, 31.5e9,
        "NVIDIA A100 data sheet (SXM, 80 GB); cache: A100 whitepaper's 5,120 bytes per clock at 1.41 GHz",
    ),
    "h100": _gpu(
        3.35e12, 50 * MIB, 9.0e12, 63e9,
        "NVIDIA H100 data sheet (SXM); cache bandwidth assumed, 5,120 bytes per clock at 1.755 GHz",
    ),
    "h200": _gpu(
        4.8e12, 50 * MIB, 9.0e12, 63e9,
        "NVIDIA H200 data sheet (SXM); cache bandwidth assumed, as for the H100",
    ),
    "b200": _gpu(
        8e12, 126 * MIB, 10.1e12, 63e9,
        "NVIDIA B200 data sheet (HGX); L2: 126 MiB as CUDA reports it; its bandwidth assumed, 5,120 bytes per clock at "
        "1.965 GHz",
    ),
    "b300": _gpu(
        8e12, 126 * MIB, 10.1e12, 63e9, "as its card of `gpu`, where sources are; cache assumed as for the B200"
    ),
    "gb200": _gpu(
        8e12, 126 * MIB, 10.1e12, 225e9,
        "as its card of `gpu`, where sources are; cache assumed as for the B200; host: half of a CPU's NVLink-C2C",
    ),
    "gb300": _gpu(
        8e12, 126 * MIB, 10.1e12, 225e9,
        "as its card of `gpu`, where sources are; cache assumed as for the B200; host: half of a CPU's NVLink-C2C",
    ),
    "l40s": _gpu(
        864e9, 96 * MIB, 5.2e12, 31.5e9,
        "NVIDIA L40S data sheet; cache bandwidth: te42kyfo/gpu-benches gpu-l2-cache, l40.txt",
    ),
}  # fmt: skip


def device_constants(name: str) -> DeviceConstants:
    """Return the constants of a device; others are an `UnknownNameError` with the closest names."""
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    return DEVICES[name]
