"""TorchRec's topology as ours."""

from __future__ import annotations

from shardgym.arguments import check_instance
from shardgym.costs.roofline import DEVICES
from shardgym.errors import InputError
from shardgym.integrations.torchrec.library import TorchRecTopology
from shardgym.topology import PRESETS, Topology

#: TorchRec's bandwidths are in bytes per millisecond.
_MS_PER_S = 1000


def topology_from_torchrec(topology: TorchRecTopology, device: str | None = None) -> Topology:
    """Return devices, memory, hosts and bandwidths of TorchRec's topology.

    Memory is HBM, or DDR where the job runs on CPUs. Latencies, which TorchRec has none of, are those of the topology
    `dgx-a100`, or `cpu`.

    Args:
        topology: TorchRec's.
        device: a key of `shardgym.costs.roofline.DEVICES`; by default "cpu-core", or the GPU with the nearest memory
            bandwidth.

    Raises:
        InputError: not such a topology, one for other devices than cuda and cpu, or a device without memory.
    """
    check_instance("topology", topology, TorchRecTopology)
    kind = topology.compute_device
    if kind not in ("cpu", "cuda"):
        raise InputError(f"TorchRec topology for '{kind}': expected compute_device 'cuda' or 'cpu'")
    if device is None:
        bandwidth = topology.hbm_mem_bw * _MS_PER_S
        gpus = [name for name in DEVICES if name != "cpu-core"]
        nearest = min(gpus, key=lambda name: abs(DEVICES[name].memory_bandwidth - bandwidth))
        device = "cpu-core" if kind == "cpu" else nearest
    latencies = {} if kind == "cpu" else PRESETS["dgx-a100"]
    return Topology(
        num_devices=topology.world_size,
        memory_bytes=tuple(
            int(hardware.storage.ddr if kind == "cpu" else hardware.storage.hbm) for hardware in topology.devices
        ),
        device=device,
        interconnect="torchrec",
        fast_domain_size=min(topology.intra_group_size, topology.world_size),
        intra_bandwidth=topology.intra_host_bw * _MS_PER_S,
        inter_bandwidth=topology.inter_host_bw * _MS_PER_S,
        **{name: value for name, value in latencies.items() if name.endswith("_latency_ms")},
    )
