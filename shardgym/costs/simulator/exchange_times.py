"""How predicted compute and widths become communication times: predicted, or by the link model of the topology."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.links import transfer_ms
from shardgym.costs.simulator.comm_net import exchanges_of
from shardgym.costs.simulator.predictors import Predictor
from shardgym.task import ELEMENT_BYTES, ShardingTask


class CommTimes(NamedTuple):
    """Communication of P plans in ms, each of shape (P, D), and the start offsets of the forward exchange."""

    forward_ms: Floats
    backward_ms: Floats
    offsets_ms: Floats


def exchange_times(predictor: Predictor, task: ShardingTask, compute_ms: Floats, widths: Floats) -> CommTimes:
    """Predict the exchanges of plans; where the networks know compute alone, the link model says what they take.

    Args:
        predictor: the networks.
        task: of all plans.
        compute_ms: forward plus backward compute, shape (P, D).
        widths: columns of each device's pooled output, shape (P, D).

    Returns:
        Times; all 0 where nothing is exchanged, on one device.
    """
    none = np.zeros_like(compute_ms)
    if task.num_devices == 1:
        return CommTimes(none, none, none)
    element_bytes = ELEMENT_BYTES[task.precision]
    if not predictor.predicts_exchanges:
        return _modelled(compute_ms, transfer_ms(task.topology, widths, task.batch_size, element_bytes))
    aligned = exchanges_of(widths, none, task.batch_size, element_bytes)
    backward = predictor.exchange_ms(aligned, backward=True).reshape(none.shape)
    busy = compute_ms + backward
    offsets = busy - busy.min(axis=1, keepdims=True)
    skewed = exchanges_of(widths, offsets, task.batch_size, element_bytes)
    return CommTimes(predictor.exchange_ms(skewed, backward=False).reshape(none.shape), backward, offsets)


def _modelled(compute_ms: Floats, transfer: Floats) -> CommTimes:
    """Return the transfer in both directions; forward, a device that is early waits for the last one."""
    busy = compute_ms + transfer
    offsets = busy - busy.min(axis=1, keepdims=True)
    return CommTimes(offsets.max(axis=1, keepdims=True) - offsets + transfer, transfer, offsets)
