"""StackedExchanges: communication times of plans of many tasks, computed plan by plan in one stack of matrices."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.simulator import comm_net
from shardgym.costs.simulator.comm_net import CommInputs, Exchanges, inputs, range_features
from shardgym.costs.simulator.exchange_times import CommTimes
from shardgym.costs.simulator.familiarity import outside
from shardgym.costs.simulator.ops import NUMPY, Groups, Params
from shardgym.costs.simulator.predictors import member
from shardgym.costs.simulator.weights import Weights


class StackedExchanges:
    """As `exchange_times` for plans that differ in batch size and precision.

    Args:
        weights: of an oracle.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._forward, self._backward = (member(weights.networks[name], 0) for name in ("forward", "backward"))

    def times(self, compute_ms: Floats, widths: Floats, batch: Floats, element_bytes: Floats) -> CommTimes:
        """Predict the exchanges of P plans on D devices each.

        Args:
            compute_ms: forward plus backward compute, shape (P, D).
            widths: columns of each device's pooled output, shape (P, D).
            batch: samples over all devices, shape (P,).
            element_bytes: of one value, shape (P,).
        """
        none = np.zeros_like(compute_ms)
        if compute_ms.shape[1] == 1:
            return CommTimes(none, none, none)
        backward = self._ms(self._backward, _exchanges(widths, none, batch, element_bytes))
        busy = compute_ms + backward
        offsets = busy - busy.min(axis=1, keepdims=True)
        return CommTimes(self._ms(self._forward, _exchanges(widths, offsets, batch, element_bytes)), backward, offsets)

    def outside(self, offsets_ms: Floats, widths: Floats, batch: Floats, element_bytes: Floats) -> Bools:
        """Say which features of each plan's exchanges leave the training data, shape (P, 4); none on one device."""
        plans, devices = widths.shape
        if devices == 1:
            return np.zeros((plans, len(comm_net.COMM_RANGE_NAMES)), dtype=np.bool_)
        features = range_features(_exchanges(widths, offsets_ms, batch, element_bytes))
        out = outside(self._weights, "comm", features).reshape(plans, devices, -1)
        return np.asarray(out.any(axis=1), dtype=np.bool_)

    def _ms(self, params: Params, exchanges: Exchanges) -> Floats:
        """Return what each exchange takes on each device, shape (P, D)."""
        plans = len(exchanges.groups)
        seen = CommInputs(*(x.reshape(plans, -1, x.shape[-1]) for x in inputs(exchanges)))
        log_ms = comm_net.log_ms(NUMPY, params, seen, Groups(exchanges.groups.counts[:1]))
        return np.asarray(np.exp(log_ms[..., 0]), dtype=np.float64)


def _exchanges(widths: Floats, offsets_ms: Floats, batch: Floats, element_bytes: Floats) -> Exchanges:
    plans, devices = widths.shape
    return Exchanges(
        Groups(np.full(plans, devices)), widths.ravel(), offsets_ms.ravel(), np.repeat(batch, devices),
        np.repeat(element_bytes, devices),
    )  # fmt: skip
