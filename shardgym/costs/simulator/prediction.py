"""Predicting whole plans, all of one call together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.simulator.comm_net import COMM_RANGE_NAMES, exchanges_of, range_features
from shardgym.costs.simulator.encoding import EncodedShards
from shardgym.costs.simulator.exchange_times import exchange_times
from shardgym.costs.simulator.familiarity import Familiarity, outside
from shardgym.costs.simulator.features import DEVICE_RANGE_NAMES, SHARD_RANGE_NAMES
from shardgym.costs.simulator.ops import Groups
from shardgym.costs.simulator.predictors import Predictor
from shardgym.costs.simulator.weights import Weights
from shardgym.plan import ShardingPlan
from shardgym.task import ELEMENT_BYTES, ShardingTask


class Predicted(NamedTuple):
    """What is predicted of P plans: ms of shape (P, D, 4) in the order of `PHASES`, and how sure that is."""

    per_device: Floats
    familiarity: list[Familiarity]


class _Held(NamedTuple):
    """Which shards the devices of all plans hold.

    Attributes:
        positions: of shards in the encoded ones, device after device, shape (H,).
        owner: plan * D + device of those devices that hold anything, ascending, shape (G,).
        groups: of `positions` by owner.
    """

    positions: Ints
    owner: Ints
    groups: Groups


def predict(
    predictor: Predictor, weights: Weights, known: EncodedShards, task: ShardingTask, plans: Sequence[ShardingPlan]
) -> Predicted:
    """Predict feasible plans.

    Args:
        predictor: the networks.
        weights: that they were made of, for the ranges of the training data.
        known: encoded shards of the task.
        task: of all plans.
        plans: at least one.
    """
    shape = len(plans), task.num_devices
    held = _held(known, plans, task.num_devices)
    compute = predictor.compute(known.encoded[held.positions], held.groups)
    ms, spread = np.zeros((*shape, 2)), np.zeros(shape)
    ms.reshape(-1, 2)[held.owner], spread.reshape(-1)[held.owner] = compute.ms, compute.spread
    widths = _widths(known, held, shape)
    comm = exchange_times(predictor, task, ms.sum(axis=2), widths)
    per_device = np.stack([ms[..., 0], comm.forward_ms, comm.backward_ms, ms[..., 1]], axis=-1)
    unfamiliar = _outside(weights, known, held, task, widths, comm.offsets_ms)
    worst = spread.max(axis=1)
    names = np.array([*SHARD_RANGE_NAMES, *DEVICE_RANGE_NAMES, *COMM_RANGE_NAMES])
    familiarity = [
        Familiarity(tuple(sorted(set(names[out].tolist()))), float(disagreement), weights.spread_limit)
        for out, disagreement in zip(unfamiliar, worst, strict=True)
    ]
    return Predicted(per_device, familiarity)


def _held(known: EncodedShards, plans: Sequence[ShardingPlan], devices: int) -> _Held:
    owner = np.array([n * devices + shard.device for n, plan in enumerate(plans) for shard in plan.shards])
    positions = known.positions(shard for plan in plans for shard in plan.shards)
    order = np.argsort(owner, kind="stable")
    owners, counts = np.unique(owner, return_counts=True)
    return _Held(positions[order], owners, Groups(counts))


def _widths(known: EncodedShards, held: _Held, shape: tuple[int, int]) -> Floats:
    """Columns of each device's pooled output, shape (P, D)."""
    widths = np.zeros(shape[0] * shape[1])
    columns = known.device_parts[held.positions, DEVICE_RANGE_NAMES.index("columns per device")]
    widths[held.owner] = np.add.reduceat(columns, held.groups.starts)
    return widths.reshape(shape)


def _outside(
    weights: Weights, known: EncodedShards, held: _Held, task: ShardingTask, widths: Floats, offsets: Floats
) -> Bools:
    """Say which features of each plan are out of range, shape (P, features of all groups)."""
    devices = task.num_devices
    first = np.searchsorted(held.owner, np.arange(len(widths)) * devices)
    by_shard = outside(weights, "shard", known.shard_ranges[held.positions])
    sums = np.add.reduceat(known.device_parts[held.positions], held.groups.starts, axis=0)
    by_device = np.hstack([
        np.logical_or.reduceat(by_shard, held.groups.starts, axis=0), outside(weights, "device", sums)
    ])  # fmt: skip
    by_plan = np.logical_or.reduceat(by_device, first, axis=0)
    if devices == 1 or not weights.predicts_exchanges:
        return np.hstack([by_plan, np.zeros((len(widths), len(COMM_RANGE_NAMES)), dtype=np.bool_)])
    exchanges = exchanges_of(widths, offsets, task.batch_size, ELEMENT_BYTES[task.precision])
    by_rank = outside(weights, "comm", range_features(exchanges))
    return np.hstack([by_plan, by_rank.reshape(len(widths), devices, -1).any(axis=1)])
