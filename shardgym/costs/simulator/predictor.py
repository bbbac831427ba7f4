"""Predictor: shards are encoded once, added up per device and priced, for any number of tasks and plans in one call.

Devices compute as the network says, the other work of a step is lines in what they handle (`features.py`), and
exchanges are those of a link model. They add up as a complete step does (`shardgym.costs.link_model`). Weights of
kernels alone have no other work, and exchanges by the task's topology.

Everything that asks the simulator goes through here: `SimulatorCost.evaluate`, environments and searches.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import AdditiveCosts, NumberedShards, join_phases
from shardgym.costs.fbgemm.namespaces import FASTEST_LINK, SLOWEST_LINK
from shardgym.costs.links import LOADS, ExchangeTimes
from shardgym.costs.mixed_tables import check_alike
from shardgym.costs.plan_cost import UNFAMILIAR, PlanCost, plan_costs
from shardgym.costs.shard_keys import PlanBatch, ShardKey
from shardgym.costs.simulator.features import DEVICE_PARTS, Groups, device_parts, device_vectors, shards_of, step_work
from shardgym.costs.simulator.network import ComputeNet
from shardgym.costs.simulator.weights import Weights, network_of
from shardgym.errors import InputError
from shardgym.tables.row_access import position_matters
from shardgym.tasks.task import ShardingTask

#: How many shards of whole plans, and how many devices, are predicted at once. Arrays of more would leave the cache;
#: and malloc would return their memory to the system in every call, which can take longer than the arithmetic.
_SHARDS_AT_ONCE = 2048
_DEVICES_AT_ONCE = 192
#: Said of plans whose devices hold what is less likely than anything that was held out of training; and of those that
#: cut tables by rows whose popularity follows their position.
_UNLIKELY = f"{UNFAMILIAR}: what a device holds"
_RANGES = f"{UNFAMILIAR}: ranges of rows that are more popular than others"


class _Predictions(NamedTuple):
    """What is predicted of P plans."""

    per_device: Floats  #: ms in the order of `PHASES`, shape (P, D, 5)
    unlikely: Bools  #: whether a device holds what is unlike the training data, shape (P,)
    ranges: Bools  #: whether a shard has some rows of a table that are more popular than others, or less, shape (P,)


def task_notes(weights: Weights, task: ShardingTask) -> tuple[str, ...]:
    """Return notes on devices and links of a task that the weights were not trained on.

    Complete steps are those of CPUs, whatever the task's devices are; the link model is fitted to links of some rates.
    Weights of kernels alone take exchanges from the task, and do not say what kind of device they are of. Memory is
    not part of a prediction.
    """
    topology = task.topology
    notes = []
    if weights.lines is not None and not topology.device.startswith("cpu"):
        notes.append(f"{UNFAMILIAR}: devices of '{topology.device}', it predicts {weights.hardware}")
    domain = topology.fast_domain_size
    rates = [topology.intra_bandwidth] * (domain > 1) + [topology.inter_bandwidth] * (domain < topology.num_devices)
    if weights.links is not None and any(not SLOWEST_LINK <= rate <= FASTEST_LINK for rate in rates):
        known = f"{SLOWEST_LINK:.3g} to {FASTEST_LINK:.3g} bytes/s"
        notes.append(f"{UNFAMILIAR}: links of {max(rates):.3g} bytes/s, it was fitted to {known}")
    return tuple(notes)


class Predictor(NumberedShards):
    """Predicts complete plans with the network of an oracle or a judge.

    Tasks and shards are kept, under numbers, as long as the predictor is.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.network = network_of(weights)
        # Not super(): an additive predictor's latents are part of what is encoded, and not kept twice.
        NumberedShards.__init__(
            self,
            encoded=((ComputeNet.LATENT,), np.float64),
            device_parts=((DEVICE_PARTS,), np.float64),
            is_range=((), np.bool_),
        )

    def add_task(self, task: ShardingTask) -> int:
        """Return the number of a task; a task of a kind that the weights were not trained on is refused."""
        if task.digest not in self._number_of_task:
            check_alike(task, "the simulator")
            for field, value, trained in (
                ("precision", task.precision, self.weights.precisions),
                ("optimizer", task.optimizer, self.weights.optimizers),
            ):
                if value not in trained:
                    raise InputError(
                        f"the simulator was not trained on {field} '{value}', only on {', '.join(trained)}: collect "
                        "samples of it and pretrain, or use cost 'fbgemm' or 'roofline'"
                    )
        return super().add_task(task)

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """Encode shards, and keep what tells whether devices are like the training data."""
        shards = shards_of(task, keys)
        tables = [task.table(key.table) for key in keys]
        is_range = [
            key.rows < table.num_embeddings and position_matters(table) for key, table in zip(keys, tables, strict=True)
        ]
        return {
            "encoded": self.network.encode(shards),
            "device_parts": device_parts(shards),
            "is_range": np.array(is_range),
        }

    def ids_hidden(self, task: ShardingTask) -> bool:  # noqa: ARG002
        """See `NumberedShards`: kernels alone are those of devices that train so."""
        return self.weights.lines is None

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """See `NumberedShards`: the step around the kernels, where weights know it."""
        if self.weights.lines is None or self.weights.links is None:
            return super().exchange_of(task, compute_ms, loads)
        return self.weights.links.step_times(task, step_work(self.weights.lines, task, compute_ms, loads), loads)

    def plan_costs(self, batch: PlanBatch) -> list[PlanCost]:
        """Return the cost of every plan. Memory, cover and widths are not checked.

        Args:
            batch: any number of plans, of shards that were encoded.
        """
        if not len(batch.counts):
            return []
        predictions = self._predict(batch)
        tasks = self.tasks_of(batch).tolist()
        of_task = {number: task_notes(self.weights, self.task(number)) for number in set(tasks)}
        notes = [
            of_task[number] + (_UNLIKELY,) * unlikely + (_RANGES,) * ranges
            for number, unlikely, ranges in zip(
                tasks, predictions.unlikely.tolist(), predictions.ranges.tolist(), strict=True
            )
        ]
        # Hidden ids have no time either.
        none_hidden = np.zeros(len(notes), dtype=np.bool_)
        return plan_costs(
            predictions.per_device, notes, none_hidden, cost="simulator", version=self.weights.version,
            hardware=self.weights.hardware, compute="predicted", communication="modelled",
        )  # fmt: skip

    def _predict(self, batch: PlanBatch) -> _Predictions:
        """Predict plans, about `_SHARDS_AT_ONCE` shards at a time."""
        ends = np.concatenate([[0], np.cumsum(batch.counts)])
        cuts = np.flatnonzero(np.diff(ends[1:] // _SHARDS_AT_ONCE)) + 1
        pieces = []
        for first, last in itertools.pairwise([0, *cuts.tolist(), len(batch.counts)]):
            rows = slice(ends[first], ends[last])
            tasks = None if batch.tasks is None else batch.tasks[first:last]
            piece = PlanBatch(
                batch.num_devices, batch.counts[first:last], batch.shards[rows], batch.devices[rows], tasks=tasks
            )
            pieces.append(self._predict_together(piece))
        return pieces[0] if len(pieces) == 1 else _Predictions(*map(np.concatenate, zip(*pieces, strict=True)))

    def _predict_together(self, batch: PlanBatch) -> _Predictions:
        shape = len(batch.counts), batch.num_devices
        plans = np.arange(shape[0])
        # Sort shards by plan and device. Devices that hold something are the groups.
        slots = np.repeat(plans * batch.num_devices, batch.counts) + batch.devices
        shards = batch.shards[np.argsort(slots, kind="stable")]
        counts = np.bincount(slots, minlength=shape[0] * shape[1])
        busy = np.flatnonzero(counts)
        groups = Groups(counts[busy])
        first_busy = np.searchsorted(busy, plans * batch.num_devices)
        compute_ms = np.zeros((*shape, 2))
        compute_ms.reshape(-1, 2)[busy] = self.network.compute(self._shards["encoded"][shards], groups)
        loads = np.zeros((*shape, LOADS))
        loads.reshape(-1, LOADS)[busy] = np.add.reduceat(self.loads(shards), groups.starts, axis=0)
        exchange = self.exchange_times(self.tasks_of(batch), compute_ms, loads)
        unlikely = self.weights.density.is_unlikely(device_vectors(self._shards["device_parts"][shards], groups))
        # A plan is as familiar as its least familiar device.
        return _Predictions(
            join_phases(compute_ms, exchange),
            np.logical_or.reduceat(unlikely, first_busy),
            np.logical_or.reduceat(self._shards["is_range"][batch.shards], np.cumsum(batch.counts) - batch.counts),
        )


class AdditivePredictor(Predictor, AdditiveCosts):
    """The oracle's predictor: also predicts devices from added latents, for searches and environments."""

    def latents(self, shards: Ints) -> Floats:
        """Return what shards add to the sum over their device, shape (n, 32)."""
        latents: Floats = self._shards["encoded"][shards]
        return latents

    def predict_ms(self, sums: Floats) -> Floats:
        """Return forward and backward ms of devices that hold something, from added latents, (G, 32) to (G, 2)."""
        if len(sums) <= _DEVICES_AT_ONCE:
            return self.network.compute_ms(sums)
        firsts = range(0, len(sums), _DEVICES_AT_ONCE)
        return np.concatenate([self.network.compute_ms(sums[i : i + _DEVICES_AT_ONCE]) for i in firsts])

    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """Return the same of devices that may be empty, which take none, (..., 32) and (...) to (..., 2)."""
        if np.count_nonzero(counts) == counts.size:
            # Picking all of them would take longer than a small network.
            return self.predict_ms(sums.reshape(-1, sums.shape[-1])).reshape(*counts.shape, 2)
        busy = counts > 0
        compute_ms = np.zeros((*counts.shape, 2))
        compute_ms[busy] = self.predict_ms(sums[busy])
        return compute_ms
