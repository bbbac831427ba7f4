"""What makes a plan as slow as it is: the device whose work holds up the step, and whether it computes or sends it.

In the forward exchange all devices wait for the last one, and the wait counts as forward communication. Without it, a
device has its compute and two exchanges, and the step takes (the longest time that a device is busy before the forward
exchange) plus (the longest forward exchange). One device or two set these; the others only wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.links import wait_ms
from shardgym.costs.plan_cost import PlanCost

#: What sets a device apart: its lookups, the columns that it sends, or an exchange that these do not explain.
Cause = Literal["compute", "columns", "other"]


class Critical(NamedTuple):
    """The device that holds up a step.

    Attributes:
        device: its number.
        compute_ms: forward plus backward compute of every device, shape (D,).
        exchange_ms: both exchanges of every device without the wait for the last one, shape (D,).
        alone_ms: how much longer the step is for this device than for the next: the most that unloading it can gain
            while what others send to it stays the same.
        cause: what it has more of than the mean device.
    """

    device: int
    compute_ms: Floats
    exchange_ms: Floats
    alone_ms: float
    cause: Cause

    @property
    def excess_ms(self) -> float:
        """By how much its compute or its exchange exceeds the mean device's, whichever does more."""
        return _excess(self.device, self.compute_ms, self.exchange_ms)


def critical(cost: PlanCost, columns: Sequence[int]) -> Critical:
    """Find the device that the step is longest for.

    Args:
        cost: of a feasible plan.
        columns: that each device holds and sends, shape (D,).

    Returns:
        The device; of several alike, the one with most compute and exchange.
    """
    forward, forward_comm, backward_comm, backward = cost.per_device.T
    compute, busy = forward + backward, forward + backward + backward_comm
    sent = forward_comm - np.minimum(wait_ms(busy), forward_comm)
    exchange = sent + backward_comm
    margins = _margins(busy) + _margins(sent)
    device = int(np.lexsort((-compute - exchange, -margins))[0])
    return Critical(device, compute, exchange, float(margins[device]), _cause(device, compute, exchange, columns))


def _margins(values: Floats) -> Floats:
    """Return by how much the largest of `values` exceeds the second at its place, and 0 elsewhere, shape (D,)."""
    margins = np.zeros(len(values))
    order = np.argsort(values)
    margins[order[-1]] = values[order[-1]] - (values[order[-2]] if len(values) > 1 else 0.0)
    return margins


def _cause(device: int, compute: Floats, exchange: Floats, columns: Sequence[int]) -> Cause:
    """Tell by what exceeds the mean device most; by what takes longer where nothing does."""
    is_more = _excess(device, compute, exchange) > 0
    more = [float(times[device] - is_more * times.mean()) for times in (compute, exchange)]
    if more[0] >= more[1]:
        return "compute"
    return "columns" if columns[device] >= np.mean(columns) else "other"


def _excess(device: int, compute: Floats, exchange: Floats) -> float:
    return max(float(times[device] - times.mean()) for times in (compute, exchange))
