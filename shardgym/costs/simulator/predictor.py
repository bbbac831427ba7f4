"""Predictor: shards are encoded once, added up per device and priced, for any number of tasks and plans in one call.

Predictions are composed as NeuroShard does (`simulator.py` there): backward communication from the devices' widths,
start offsets from compute plus backward communication, forward communication with these offsets.

Everything that asks the simulator goes through here: `SimulatorCost.evaluate`, placements, the environments and the
search in NumPy. The compiled search mirrors `compute_ms` and `slowest_ms`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, GrowingArrays, Ints
from shardgym.costs.additive import AdditiveCosts, NumberedShards, PlanBatch, ShardKey, join_phases
from shardgym.costs.links import ExchangeTimes, link_notes, start_offsets
from shardgym.costs.plan_cost import PlanCost, Source, plan_costs
from shardgym.costs.simulator import features
from shardgym.costs.simulator.familiarity import Devices, Familiarity, check_of, names_of
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.oracle_networks import OracleNetworks
from shardgym.costs.simulator.weights import Weights, networks_of
from shardgym.errors import InputError
from shardgym.task import ELEMENT_BYTES, ShardingTask

#: How many shards of whole plans, and how many devices, are predicted at once. Arrays of more would leave the cache;
#: and malloc would return their memory to the system in every call, which can take longer than the arithmetic.
_SHARDS_AT_ONCE = 2048
_DEVICES_AT_ONCE = 256
#: Likewise of exchanges, whose networks are smaller.
_EXCHANGING_DEVICES_AT_ONCE = 512


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
        self._task_rows = GrowingArrays(batch_size=((), np.float64), element_bytes=((), np.float64))
        self._link_notes: list[tuple[str, ...]] = []
        self._notes: dict[tuple[int, bool], tuple[str, ...]] = {}

    @property
    def sources(self) -> tuple[Source, Source]:
        """How compute and communication come about; communication is modelled by weights of compute alone."""
        return "predicted", "predicted" if self.weights.predicts_exchanges else "modelled"

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
            self._task_rows.append(batch_size=[task.batch_size], element_bytes=[ELEMENT_BYTES[task.precision]])
            self._link_notes.append(link_notes(task, self.sources[1], self.weights.hardware))
        return super().add_task(task)

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """Encode shards, and note what tells whether they are like the training data."""
        shards = features.shards_of(task, keys)
        return {"encoded": self.networks.encode(shards), **self._check.describe(shards)}

    def exchange_times(self, tasks: int | Ints, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        """Predict the exchanges of P plans on D devices; with weights of compute alone, the link model says them.

        Args:
            tasks: number of each plan's task, shape (P,), or one for all.
            compute_ms: forward plus backward compute, shape (P, D).
            widths: columns of each device's pooled output, shape (P, D).

        Returns:
            Times; all 0 where nothing is exchanged, on one device.
        """
        num_plans, num_devices = compute_ms.shape
        step = max(1, _EXCHANGING_DEVICES_AT_ONCE // num_devices)
        if num_plans <= step:
            return self._exchange_times_together(tasks, compute_ms, widths)
        task_of_plan = np.broadcast_to(tasks, num_plans)
        cuts = [slice(first, first + step) for first in range(0, num_plans, step)]
        pieces = [self._exchange_times_together(task_of_plan[cut], compute_ms[cut], widths[cut]) for cut in cuts]
        return ExchangeTimes(*map(np.concatenate, zip(*pieces, strict=True)))

    def _exchange_times_together(self, tasks: int | Ints, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        if not self.weights.predicts_exchanges:
            return self.modelled_exchanges(tasks, compute_ms, widths)
        zeros = np.zeros_like(compute_ms)
        if compute_ms.shape[1] == 1:
            return ExchangeTimes(zeros, zeros, zeros)
        aligned = features.exchanges_of(widths, zeros, *self._batch_and_bytes(tasks))
        backward_ms = self.networks.exchange_ms(aligned, backward=True).reshape(zeros.shape)
        offsets_ms = start_offsets(compute_ms + backward_ms)
        skewed = aligned._replace(offsets_ms=offsets_ms.ravel())
        forward_ms = self.networks.exchange_ms(skewed, backward=False).reshape(zeros.shape)
        return ExchangeTimes(forward_ms, backward_ms, offsets_ms)

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        """See `NumberedShards`: weights of compute alone may name a link model that was fitted to exchanges."""
        if self.weights.links is not None:
            return self.weights.links.exchange_times(task, compute_ms, widths)
        return super().exchange_of(task, compute_ms, widths)

    def plan_costs(self, batch: PlanBatch) -> list[PlanCost]:
        """Return the cost of every plan. Memory, cover and widths are not checked.

        Args:
            batch: any number of plans, of shards that were encoded.
        """
        if not len(batch.counts):
            return []
        predictions = self._predict(batch)
        unsure = predictions.disagreement > self.weights.spread_limit
        tasks = self.tasks_of(batch)
        notes = [
            self._notes_of(*key) + self._link_notes[task]
            for *key, task in zip(predictions.outside.tolist(), unsure.tolist(), tasks.tolist(), strict=True)
        ]
        compute, communication = self.sources
        return plan_costs(
            predictions.per_device, notes, cost="simulator", version=self.weights.version,
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
        tasks = self.tasks_of(batch)
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
        widths = np.zeros(shape)
        widths.reshape(-1)[busy] = np.add.reduceat(self._shards["widths"][shards], groups.starts)
        exchange = self.exchange_times(tasks, compute_ms.sum(axis=2), widths)
        outside = self._check.contents(self._shards, Devices(shards, groups, first_shard, first_busy))
        if batch.num_devices > 1 and self.weights.predicts_exchanges:
            exchanges = features.exchanges_of(widths, exchange.offsets_ms, *self._batch_and_bytes(tasks))
            outside = outside | self._check.exchanges(exchanges)
        # A plan is as familiar as its least familiar device.
        disagreement = np.maximum.reduceat(compute.disagreement, first_busy)
        return _Predictions(join_phases(compute_ms, exchange), outside, disagreement)

    def _batch_and_bytes(self, tasks: int | Ints) -> tuple[Floats, Floats]:
        return self._task_rows["batch_size"][tasks], self._task_rows["element_bytes"][tasks]

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

    def compute_ms(self, sums: Floats) -> Floats:
        """Return forward and backward ms of devices that hold something, from added latents, (G, 32) to (G, 2)."""
        if len(sums) <= _DEVICES_AT_ONCE:
            return self.networks.compute_ms(sums)
        firsts = range(0, len(sums), _DEVICES_AT_ONCE)
        return np.concatenate([self.networks.compute_ms(sums[i : i + _DEVICES_AT_ONCE]) for i in firsts])

    def device_ms(self, sums: Floats, counts: Ints) -> Floats:
        """Return the same of devices that may be empty, which take none, (..., 32) and (...) to (..., 2)."""
        if np.count_nonzero(counts) == counts.size:
            # Picking all of them would take longer than a small network.
            return self.compute_ms(sums.reshape(-1, sums.shape[-1])).reshape(*counts.shape, 2)
        busy = counts > 0
        compute_ms = np.zeros((*counts.shape, 2))
        compute_ms[busy] = self.compute_ms(sums[busy])
        return compute_ms
