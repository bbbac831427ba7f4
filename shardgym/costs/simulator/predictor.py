"""Predictor: shards are encoded once, added up per device and priced, for any number of tasks and plans in one call.

Compute is predicted, exchanges are modelled; a step adds up as on CPUs, where ids are not hidden (`links.py`).

Everything that asks the simulator goes through here: `SimulatorCost.evaluate`, placements, the environments and the
searches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts, NumberedShards, PlanBatch, ShardKey, join_phases
from shardgym.costs.link_model import StepWork
from shardgym.costs.links import LOADS, ExchangeTimes
from shardgym.costs.plan_cost import PlanCost, Source, plan_costs
from shardgym.costs.simulator import features
from shardgym.costs.simulator.familiarity import Devices, Familiarity, check_of, names_of
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.oracle_networks import OracleNetworks
from shardgym.costs.simulator.weights import Weights, networks_of
from shardgym.errors import InputError
from shardgym.task import ShardingTask

#: How many shards of whole plans, and how many devices, are predicted at once. Arrays of more would leave the cache;
#: and malloc would return their memory to the system in every call, which can take longer than the arithmetic.
_SHARDS_AT_ONCE = 2048
_DEVICES_AT_ONCE = 256


class _Predictions(NamedTuple):
    """What is predicted of P plans.

    Attributes:
        per_device: ms in the order of `PHASES`, shape (P, D, 5).
        outside: one bit for each name of the check that is unlike the training data, shape (P,).
        disagreement: largest one of any device, shape (P,).
    """

    per_device: Floats
    outside: Ints
    disagreement: Floats


class Predictor(NumberedShards):
    """Predicts complete plans with the networks of an oracle or a judge.

    Tasks and shards are kept, under numbers, as long as the predictor is.

    Args:
        weights: of either role.

    Attributes:
        weights: likewise.
        networks: that have these weights.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.networks: Networks = networks_of(weights)
        self._check = check_of(weights)
        # Not super(): an additive predictor's latents are part of what is encoded, and not kept twice.
        NumberedShards.__init__(
            self,
            encoded=(self.networks.encoded_shape, np.float64),
            **self._check.arrays,
        )
        self._notes: dict[tuple[int, bool], tuple[str, ...]] = {}

    @property
    def sources(self) -> tuple[Source, Source]:
        """How compute and communication come about."""
        return "predicted", "modelled"

    def add_task(self, task: ShardingTask) -> int:
        """Return the number of a task.

        Raises:
            InputError: the task is of a kind that the weights were not trained on, and that no feature describes by
                degrees.
        """
        if task.digest not in self._number_of_task:
            for field, value, trained in (
                ("precision", task.precision, self.weights.precisions),
                ("optimizer", task.optimizer, self.weights.optimizers),
            ):
                if value not in trained:
                    wider = "use the simulator's generation=2, or " if self.weights.generation == 1 else ""
                    raise InputError(
                        f"the simulator was not trained on {field} '{value}': its weights know {', '.join(trained)}; "
                        f"{wider}collect samples of it and pretrain, or use cost 'fbgemm' or 'roofline'"
                    )
        return super().add_task(task)

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """Encode shards, and note what tells whether they are like the training data."""
        shards = features.shards_of(task, keys)
        return {"encoded": self.networks.encode(shards), **self._check.describe(shards)}

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """See `NumberedShards`: weights may name a link model that was fitted to exchanges."""
        if self.weights.links is None:
            return super().exchange_of(task, compute_ms, loads)
        none = np.zeros(compute_ms.shape[:-1])
        work = StepWork(none, none, none, compute_ms[..., 0], none, none, compute_ms[..., 1])
        return self.weights.links.step_times(task, work, loads)

    def plan_costs(self, batch: PlanBatch) -> list[PlanCost]:
        """Return the cost of every plan. Memory, cover and widths are not checked.

        Args:
            batch: any number of plans, of shards that were encoded.
        """
        if not len(batch.counts):
            return []
        predictions = self._predict(batch)
        unsure = predictions.disagreement > self.weights.spread_limit
        notes = [self._notes_of(*key) for key in zip(predictions.outside.tolist(), unsure.tolist(), strict=True)]
        compute, communication = self.sources
        never = np.zeros(len(notes), dtype=np.bool_)
        return plan_costs(
            predictions.per_device, notes, never, cost="simulator", version=self.weights.version,
            hardware=self.weights.hardware, compute=compute, communication=communication,
        )  # fmt: skip

    def familiarity(self, batch: PlanBatch) -> list[Familiarity]:
        """Say for each plan how far it is from the training data."""
        predictions = self._predict(batch)
        limit = self.weights.spread_limit
        return [
            Familiarity(names_of(self._check, outside), spread, limit)
            for outside, spread in zip(predictions.outside.tolist(), predictions.disagreement.tolist(), strict=True)
        ]

    def _predict(self, batch: PlanBatch) -> _Predictions:
        """Predict plans, about `_SHARDS_AT_ONCE` shards at a time."""
        ends = np.concatenate([[0], np.cumsum(batch.counts)])
        cuts = np.flatnonzero(np.diff(ends[1:] // _SHARDS_AT_ONCE)) + 1
        pieces = []
        for first, last in itertools.pairwise([0, *cuts.tolist(), len(batch.counts)]):
            rows = slice(ends[first], ends[last])
            piece = PlanBatch(batch.num_devices, batch.counts[first:last], batch.shards[rows], batch.devices[rows])
            pieces.append(self._predict_together(piece))
        return pieces[0] if len(pieces) == 1 else _Predictions(*map(np.concatenate, zip(*pieces, strict=True)))

    def _predict_together(self, batch: PlanBatch) -> _Predictions:
        shape = len(batch.counts), batch.num_devices
        plans = np.arange(shape[0])
        first_shard = np.cumsum(batch.counts) - batch.counts
        # Sort shards by plan and device. Devices that hold something are the groups.
        slots = np.repeat(plans * batch.num_devices, batch.counts) + batch.devices
        shards = batch.shards[np.argsort(slots, kind="stable")]
        counts = np.bincount(slots, minlength=shape[0] * shape[1])
        busy = np.flatnonzero(counts)
        groups = features.Groups(counts[busy])
        first_busy = np.searchsorted(busy, plans * batch.num_devices)
        compute = self.networks.compute(self._shards["encoded"][shards], groups)
        compute_ms = np.zeros((*shape, 2))
        compute_ms.reshape(-1, 2)[busy] = compute.ms
        loads = np.zeros((*shape, LOADS))
        loads.reshape(-1, LOADS)[busy] = np.add.reduceat(self.loads(shards), groups.starts)
        exchange = self.exchange_times(self.tasks_of(batch), compute_ms, loads)
        outside = self._check.contents(self._shards, Devices(shards, groups, first_shard, first_busy))
        # A plan is as familiar as its least familiar device.
        disagreement = np.maximum.reduceat(compute.disagreement, first_busy)
        return _Predictions(join_phases(compute_ms, exchange), outside, disagreement)

    def _notes_of(self, outside: int, unsure: bool) -> tuple[str, ...]:
        """Return the notes on a plan; most plans have the same ones, or none."""
        key = outside, unsure
        if key not in self._notes:
            spread = np.inf if unsure else 0.0
            self._notes[key] = Familiarity(names_of(self._check, outside), spread, self.weights.spread_limit).notes()
        return self._notes[key]


class AdditivePredictor(Predictor, AdditiveCosts):
    """The oracle's predictor: also predicts devices from added latents, for searches and environments.

    Args:
        weights: of an oracle.
    """

    networks: OracleNetworks

    def latents(self, shards: Ints) -> Floats:
        """Return what shards add to the sum over their device, shape (n, 32)."""
        latents: Floats = self._shards["encoded"][shards, 0]
        return latents

    def device_ms(self, sums: Floats, counts: Ints) -> Floats:
        """Return forward and backward ms of devices; empty ones take none, (..., 32) and (...) to (..., 2)."""
        if np.count_nonzero(counts) == counts.size:
            # Picking all of them would take longer than a small network.
            return self._busy_ms(sums.reshape(-1, sums.shape[-1])).reshape(*counts.shape, 2)
        busy = counts > 0
        ms = np.zeros((*counts.shape, 2))
        ms[busy] = self._busy_ms(sums[busy])
        return ms

    def _busy_ms(self, sums: Floats) -> Floats:
        """Return the same of devices that hold something, (G, 32) to (G, 2)."""
        if len(sums) <= _DEVICES_AT_ONCE:
            return self.networks.compute_ms(sums)
        firsts = range(0, len(sums), _DEVICES_AT_ONCE)
        return np.concatenate([self.networks.compute_ms(sums[i : i + _DEVICES_AT_ONCE]) for i in firsts])
