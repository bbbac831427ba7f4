"""The devices of a TorchRec job: its topology as ours, and what a device needs besides embedding tables."""

from __future__ import annotations

import dataclasses
import math

from torch import nn
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from shardgym.arguments import check_instance
from shardgym.costs.roofline import DEVICES
from shardgym.errors import InputError
from shardgym.records import short_repr
from shardgym.task import ShardingTask
from shardgym.topology import PRESETS, Topology

#: TorchRec's bandwidths are in bytes per millisecond.
_MS_PER_S = 1000
#: Bytes of an id in an input buffer.
_ID_BYTES = 8


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


@dataclasses.dataclass(frozen=True)
class Reserve:
    """Memory that is taken off every device before tables are placed.

    The parts and their defaults are those of TorchRec's `HeuristicalStorageReservation`: a share of the memory as a
    margin, a multiple of the dense parameters for gradients, optimiser and DistributedDataParallel, and copies of the
    ids of a rank's batch in the buffers of a training pipeline. Activations are yours to know.

    Attributes:
        share: of the memory of a device, from 0 to 1.
        dense_copies: times the bytes of all parameters outside of embedding collections.
        input_copies: times the bytes of the ids of a rank's batch.
        extra_bytes: for activations and whatever else.
    """

    share: float = 0.15
    dense_copies: float = 6.0
    input_copies: float = 20.0
    extra_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            most = 1 if field.name == "share" else math.inf
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                expected = "a share from 0 to 1" if field.name == "share" else "a number of at least 0"
                raise InputError(f"Reserve: {field.name}: expected {expected}, got {short_repr(value)}")

    def bytes_per_device(self, model: nn.Module, task: ShardingTask) -> tuple[int, ...]:
        """Return what is taken off each device of a task that was made from a model."""
        sharded = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, EmbeddingBagCollection)
            for parameter in module.parameters()
        }
        dense = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in sharded)
        buffers = sum(b.numel() * b.element_size() for b in model.buffers())
        ids_per_sample = math.fsum(table.pooling_factor for table in task.tables)
        inputs = task.batch_size / task.num_devices * ids_per_sample * _ID_BYTES
        common = self.dense_copies * dense + buffers + self.input_copies * inputs + self.extra_bytes
        return tuple(math.ceil(self.share * memory + common) for memory in task.topology.memory_bytes)
