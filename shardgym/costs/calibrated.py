"""CalibratedCost: an analytic cost at the level of a cluster, as `shardgym compare` measured it there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel, SummedCost, additive_costs
from shardgym.costs.links import ExchangeTimes
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import InputError
from shardgym.files import read_text
from shardgym.records import CONFIG, Label, Name, Number, Record, parse_json
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

Level = Annotated[Number, Field(gt=0)]


@dataclass(frozen=True, config=CONFIG)
class Calibration(Record):
    """Levels of a cost on a cluster."""

    cost: Literal["gpu", "roofline"]  #: whose levels they are
    device: Name  #: of the topology of tasks that it prices
    hardware: Label  #: tag of what was measured
    compute: Level  #: what lookups and updates took, over what the cost says
    exchange: Level  #: what exchanges of outputs and gradients took, over what the cost says
    #: What a step took that the cost does not count: exchange of ids, Python, the dense part.
    fixed_ms: Annotated[Number, Field(ge=0)]
    schema: Literal["shardgym.calibration/1"] = "shardgym.calibration/1"

    @classmethod
    def of_result(cls, path: str | Path) -> Calibration:
        """Read the calibration in a result of `shardgym compare`; raises `InputError` where there is none."""
        data = parse_json(read_text(path), str(path))
        found = data.get("calibration") if isinstance(data, dict) else None
        if found is None:
            raise InputError(f"{path}: expected a result of 'shardgym compare' with a calibration")
        return cls.from_dict(found, str(path))


class CalibratedCost(SummedCost):
    """An analytic cost whose compute and exchanges have the level of a cluster, and whose steps have its fixed part.

    Raises:
        InputError: the calibration was made for another cost, or for other devices than a task's.
    """

    name = "calibrated"
    version = "1"
    deterministic = True
    replicas = True
    unpooled = True
    host_memory = True

    def __init__(self, cost: CostModel, calibration: Calibration) -> None:
        if cost.name != calibration.cost:
            raise InputError(f"calibration: made for cost '{calibration.cost}', got cost '{cost.name}'")
        self._cost = cost
        self.calibration = calibration
        super().__init__()

    @property
    def hardware(self) -> str:
        """Return the tag of what was measured, as modelled."""
        return f"{self.calibration.hardware}-modelled"

    def make_prices(self) -> AdditiveCalibrated:
        """See `SummedCost`."""
        return AdditiveCalibrated(additive_costs(self._cost, "calibration"), self.calibration)

    def notes(self, task: ShardingTask) -> tuple[str, ...]:
        """See `CostModel`."""
        return self._cost.notes(task)


class AdditiveCalibrated(AdditiveCosts):
    """The prices of a cost at other levels."""

    def __init__(self, costs: AdditiveCosts, calibration: Calibration) -> None:
        super().__init__(costs.latents(np.zeros(0, dtype=np.int64)).shape[1])
        self._costs = costs
        self._levels = calibration

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, Floats]:
        """See `AdditiveCosts`; a task with other devices is an `InputError`."""
        if task.topology.device != self._levels.device:
            raise InputError(f"calibration: made for '{self._levels.device}', the task is for '{task.topology.device}'")
        return self._costs.describe(task, keys)

    def key_loads(self, task: ShardingTask, key: ShardKey) -> list[float]:
        """See `NumberedShards`."""
        return self._costs.key_loads(task, key)

    def ids_hidden(self, task: ShardingTask) -> bool:
        """See `NumberedShards`."""
        return self._costs.ids_hidden(task)

    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`."""
        return self._levels.compute * self._costs.device_ms(sums, counts)

    def operator_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`."""
        return self._levels.compute * self._costs.operator_ms(sums, counts)

    def least_ms(self, vectors: Floats, typical: Floats) -> Floats:
        """See `AdditiveCosts`."""
        return self._levels.compute * self._costs.least_ms(vectors, typical)

    def all_to_all_links(self, task: ShardingTask) -> tuple[Topology, int]:
        """See `AdditiveCosts`."""
        links, element_bytes = self._costs.all_to_all_links(task)
        level = self._levels.exchange
        slower = dataclasses.replace(
            links,
            intra_bandwidth=links.intra_bandwidth / level,
            inter_bandwidth=links.inter_bandwidth / level,
            intra_latency_ms=links.intra_latency_ms * level,
            inter_latency_ms=links.inter_latency_ms * level,
        )
        return slower, element_bytes

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """See `AdditiveCosts`; the fixed part of a step counts with the forward exchange."""
        level = self._levels.exchange
        # In units in which exchanges have the level of the cost.
        times = self._costs.exchange_of(task, compute_ms / level, loads)
        return ExchangeTimes(
            level * times.ids_ms, level * times.forward_ms + self._levels.fixed_ms, level * times.backward_ms
        )

    def replicas_ms(self, task: ShardingTask, loads: Floats, groups: int) -> Floats:
        """See `AdditiveCosts`."""
        return self._levels.exchange * self._costs.replicas_ms(task, loads, groups)
