"""TorchRecRatingCost: how TorchRec's planner rates a plan, without TorchRec.

The formulas are those of TorchRec 1.8.0, `torchrec/distributed/planner/estimator/estimator.py`, for training with fused
kernels, dense ones for replicas, one feature per pooled table and ids of 8 bytes. The constants are those of
`planner/constants.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import SummedCost
from shardgym.costs.links import LOADS, ExchangeTimes
from shardgym.costs.mixed_tables import check_alike
from shardgym.costs.plan_cost import PHASES
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import InputError
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

_ID_BYTES = 8
#: FBGEMM reads rows at least this many columns wide, as the planner counts them.
_NARROWEST_READ = 32
#: `BATCHED_COPY_PERF_FACTOR`: how often gathered gradients of row shards are copied.
_COPIES = 2.455
#: `DP_ELEMENTWISE_KERNELS_PERF_FACTOR`: how often the optimiser of a replica passes over its table.
_OPTIMIZER_PASSES = 9.22
#: Share of the memory bandwidth that a dense kernel has.
_DENSE_KERNEL = 0.5
_GIB_PER_MS = 2**30 / 1000


@dataclass(frozen=True)
class PlannerConstants:
    """Arguments of TorchRec's `Topology` that enter the rating, with its defaults; bandwidths in bytes per ms."""

    compute_device: Literal["cuda", "cpu"] = "cuda"  #: "cuda" reads tables at `hbm_mem_bw`, "cpu" at `ddr_mem_bw`
    hbm_mem_bw: float = 897 * _GIB_PER_MS  #: memory bandwidth of a GPU
    ddr_mem_bw: float = 51 * _GIB_PER_MS  #: memory bandwidth of a host
    intra_host_bw: float = 600 * _GIB_PER_MS  #: of an exchange among devices of one host
    inter_host_bw: float = 12.5 * _GIB_PER_MS  #: of every other exchange, for each device
    bwd_compute_multiplier: float = 2.0  #: backward compute over forward compute

    def __post_init__(self) -> None:
        if self.compute_device not in ("cuda", "cpu"):
            raise InputError(f"compute_device: expected 'cuda' or 'cpu', got {self.compute_device!r}")
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"{field.name}: expected a positive number, got {value!r}")

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from TorchRec's defaults."""
        defaults = PlannerConstants()
        return {name: value for name, value in asdict(self).items() if value != getattr(defaults, name)}


def shard_ms(constants: PlannerConstants, task: ShardingTask, key: ShardKey) -> tuple[float, float, float, float]:
    """Return what TorchRec's planner expects of one shard in ms, in the order of `PHASES` after "ids".

    A shard with all rows of its table is rated by `TableWiseEvaluator`, which also rates column-wise shards. One with
    fewer rows is rated by `RowWiseEvaluator`, or by `TableRowWiseEvaluator`, which also rates grids, if one fast domain
    of several has all rows; with its share of the table's rows in place of 1 / devices. They agree where rows are cut
    evenly over all devices or over a domain, the only ways that TorchRec has. What all devices hold is rated by
    `DataParallelEvaluator`. In groups of 2D parallelism a shard is rated as if its group were alone, as there.
    TorchRec counts the copies of gathered gradients and the optimiser of replicas as communication, and so does this.
    """
    memory_bw = constants.hbm_mem_bw if constants.compute_device == "cuda" else constants.ddr_mem_bw
    if key.served == 1:
        return _replica_ms(constants, task, key, memory_bw)
    whole = task.table(key.table)
    cut_by_rows = key.rows < whole.num_embeddings
    element_bytes = ELEMENT_BYTES[task.precision]
    devices = key.served or task.num_devices
    # In TorchRec's order of operations: its `ceil` would otherwise differ by a byte now and then.
    batch_size = task.batch_size / task.num_devices
    ids = whole.pooling_factor * batch_size / (whole.num_embeddings / key.rows) * devices
    # Of an unpooled table, a shard puts out as many rows as it reads.
    outputs = min(1.0, whole.pooling_factor) * batch_size * devices if whole.is_pooled else ids
    width = key.columns if cut_by_rows else max(key.columns, _NARROWEST_READ)
    penalty = 1.0 if cut_by_rows or key.columns >= 128 else 1.15 if key.columns >= 64 else 1.75
    output_bytes = outputs * key.columns * element_bytes
    read_bytes = math.ceil(ids * _ID_BYTES) + ids * width * element_bytes + output_bytes

    forward = read_bytes * penalty / memory_bw
    domain = task.topology.fast_domain_size if key.in_domain else devices
    one_host = domain <= task.topology.devices_per_host
    exchange = output_bytes / (constants.intra_host_bw if one_host else constants.inter_host_bw)
    if key.in_domain:
        # Sums of a domain go on to the other domains.
        exchange += output_bytes / devices * (devices // domain) / constants.inter_host_bw
    copies = output_bytes * _COPIES / memory_bw if cut_by_rows else 0.0
    return forward, exchange, exchange + copies, forward * constants.bwd_compute_multiplier


def _replica_ms(
    constants: PlannerConstants, task: ShardingTask, key: ShardKey, memory_bw: float
) -> tuple[float, float, float, float]:
    """Return the same of what all devices hold: own samples forward, an all-reduce of the whole table backward."""
    table = task.table(key.table)
    pooling = table.pooling_factor
    element_bytes = ELEMENT_BYTES[task.precision]
    batch_size = task.batch_size / task.num_devices
    ids = pooling * batch_size
    row_bytes = key.columns * element_bytes
    outputs = min(1.0, pooling) * batch_size if table.is_pooled else ids
    forward_bytes = math.ceil(ids * _ID_BYTES) + ids * row_bytes + outputs * row_bytes
    forward = forward_bytes / (_DENSE_KERNEL * memory_bw)

    host = task.topology.devices_per_host
    hosts = min(task.num_devices / host, 2)
    table_bytes = key.rows * row_bytes
    all_reduce = table_bytes * (2 * hosts - 1) / hosts / (constants.inter_host_bw * host)
    if task.num_devices > 2 * host:
        all_reduce *= 2
    optimizer = table_bytes * _OPTIMIZER_PASSES / (_DENSE_KERNEL * memory_bw)
    return forward, 0.0, all_reduce + optimizer, forward * constants.bwd_compute_multiplier


class TorchRecRatingCost(SummedCost):
    """The rating by which TorchRec's planner chooses among plans: a model, not a measurement.

    Each shard gets four times from bytes over bandwidths, whatever else is on its device. A column of
    `PlanCost.per_device` after the first is the sum of that time over the shards of the device: Perf.fwd_compute,
    fwd_comms, bwd_comms and bwd_compute of TorchRec. `total_ms` is the largest sum over a device's shards and phases.
    So it is TorchRec's `NoopPerfModel.rate`. No device waits for another one, and the exchange of ids is not counted,
    as in TorchRec.

    What the topology calls its device, its bandwidths and its latencies play no part: TorchRec has constants of its
    own, those of a V100 server by default. Of the topology it needs the number of devices, of those in a host (its
    `local_world_size`) and of those in a fast domain (its `pod_size` hosts). Plans must fit into memory as the task
    counts it. All kinds of plans are rated, apart from tiers, which TorchRec has none of.

    Arguments are the fields of `PlannerConstants`.

    Raises:
        InputError: a constant is not a positive number, or the device is neither "cuda" nor "cpu".
    """

    name = "torchrec_rating"
    version = "2"
    deterministic = True
    replicas = True
    unpooled = True

    def __init__(
        self,
        compute_device: Literal["cuda", "cpu"] = PlannerConstants.compute_device,
        hbm_mem_bw: float = PlannerConstants.hbm_mem_bw,
        ddr_mem_bw: float = PlannerConstants.ddr_mem_bw,
        intra_host_bw: float = PlannerConstants.intra_host_bw,
        inter_host_bw: float = PlannerConstants.inter_host_bw,
        bwd_compute_multiplier: float = PlannerConstants.bwd_compute_multiplier,
    ) -> None:
        self.constants = PlannerConstants(
            compute_device, hbm_mem_bw, ddr_mem_bw, intra_host_bw, inter_host_bw, bwd_compute_multiplier
        )
        super().__init__()

    @property
    def hardware(self) -> str:
        """Return "torchrec-cuda" or "torchrec-cpu", with the constants that are not TorchRec's."""
        changed = {name: value for name, value in self.constants.changed.items() if name != "compute_device"}
        others = "".join(f"-{name}={value:g}" for name, value in changed.items())
        return f"torchrec-{self.constants.compute_device}{others}"

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return self.constants.changed

    def make_prices(self) -> AdditiveTorchRecRating:
        """See `SummedCost`."""
        return AdditiveTorchRecRating(self.constants)


class AdditiveTorchRecRating(AdditiveCosts):
    """The prices of `TorchRecRatingCost`: latents are the four times of a shard, in the order of `PHASES` after "ids".

    Exchanges add up over shards like compute. So `device_ms` holds them, and `exchange_of` has nothing to add.
    """

    def __init__(self, constants: PlannerConstants) -> None:
        super().__init__(num_latents=len(PHASES) - 1)
        self._constants = constants

    def add_task(self, task: ShardingTask) -> int:
        """See `NumberedShards`; tables of another kind than the task's are an `InputError`."""
        check_alike(task, "the rating", unpooled=True)
        return super().add_task(task)

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, Floats]:
        """See `AdditiveCosts`."""
        return {"latents": np.array([shard_ms(self._constants, task, key) for key in keys], dtype=np.float64)}

    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """Return the forward and the backward pass of devices in ms, exchanges included; see `AdditiveCosts`."""
        del counts  # sums of empty devices are 0
        return np.stack([sums[..., 0] + sums[..., 1], sums[..., 2] + sums[..., 3]], axis=-1)

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """Return zeros: `device_ms` holds the exchanges, and no device waits."""
        del task, loads
        return ExchangeTimes(*np.zeros((3, *compute_ms.shape[:-1])))

    def replicas_ms(self, task: ShardingTask, loads: Floats, groups: int) -> Floats:
        """Return zeros: latents hold what replicas exchange."""
        del task, groups
        return np.zeros(loads.shape[:-1])

    def phases_in_groups(self, number: int, groups: int, sums: Floats) -> Floats:
        """Return what `per_device_ms` does: groups exchange no weights."""
        del groups
        return self.per_device_ms(number, sums)

    def per_device_ms(self, tasks: int | Ints, sums: Floats) -> Floats:
        """See `AdditiveCosts`."""
        del tasks
        return np.concatenate([np.zeros((*sums.shape[:-1], 1)), sums[..., :-LOADS]], axis=-1)
