"""The oracle's communication model: one set of weights for any number of devices.

Every device of an exchange is described by its own amounts and those of the whole exchange. A shared encoder makes a
vector of each, the mean and the largest of them over devices are handed back to everybody, and a shared head says
what the exchange takes on each device: a fitted analytic sum times a correction, plus the wait for the device
that enters last. Numbering the devices differently renumbers the result. The published models
(NeuroShard, `comm_cost_model.py`) are separate nets for every number of devices and depend on their order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.costs.simulator.ops import Array, Groups, Ops, Params, bounded, dense

ENCODER_SIZES = (48, 32)
HEAD_SIZES = (48,)
LIMIT = 1.5
FEATURE_LIMIT = 4.0
_FEATURES = 15

#: What must lie in the range of the training data.
COMM_RANGE_NAMES = ("devices", "batch_size", "bytes per device", "start offset")


#: Parameters that are not trained, see `fixed`.
FIXED = ("feature_mean", "feature_scale", "work_unit", "prior")


class Exchanges(NamedTuple):
    """Any number of exchanges; devices in one flat list of S.

    Attributes:
        groups: devices of each exchange.
        widths: columns of each device's pooled output, shape (S,).
        offsets_ms: how much later than the first each device starts, shape (S,); zeros for an aligned start.
        batch: samples over all devices of the device's exchange, shape (S,).
        element_bytes: of one value, shape (S,).
    """

    groups: Groups
    widths: Floats
    offsets_ms: Floats
    batch: Floats
    element_bytes: Floats


class CommInputs(NamedTuple):
    """What the networks see of each device: features (S, 15), analytic amounts (S, 5), wait in ms (S, 1)."""

    features: Array
    amounts: Array
    wait_ms: Array


def inputs(exchanges: Exchanges) -> CommInputs:
    """Work out features, amounts of work and waits."""
    groups, ids = exchanges.groups, exchanges.groups.ids
    counts = groups.counts.astype(np.float64)[ids]
    samples = exchanges.batch / counts
    row_bytes = exchanges.widths * exchanges.element_bytes
    total = np.add.reduceat(row_bytes, groups.starts)[ids]
    largest = np.maximum.reduceat(row_bytes, groups.starts)[ids]
    sent, received = row_bytes * (exchanges.batch - samples), (total - row_bytes) * samples
    moved, busiest = total * (exchanges.batch - samples), largest * (exchanges.batch - samples)
    wait = np.maximum.reduceat(exchanges.offsets_ms, groups.starts)[ids] - exchanges.offsets_ms
    longest = np.maximum.reduceat(wait, groups.starts)[ids]
    mean_wait = np.add.reduceat(wait, groups.starts)[ids] / counts
    amounts = np.column_stack([np.ones_like(counts), counts, moved, busiest, sent + received])
    features = np.column_stack([
        np.log(np.column_stack([counts, exchanges.batch, exchanges.element_bytes])),
        np.log1p(np.column_stack([moved, busiest, sent, received])),
        row_bytes / np.maximum(largest, 1.0), row_bytes * counts / np.maximum(total, 1.0),
        np.log1p(np.column_stack([wait, longest, mean_wait])),
        wait / np.maximum(longest, 1e-3), (wait == 0), (row_bytes == 0),
    ])  # fmt: skip
    return CommInputs(features, amounts, wait[:, None])


def range_features(exchanges: Exchanges) -> Floats:
    """Return the features named in `COMM_RANGE_NAMES`, shape (S, 4)."""
    counts = exchanges.groups.counts.astype(np.float64)[exchanges.groups.ids]
    sent = exchanges.widths * exchanges.element_bytes * exchanges.batch
    return np.column_stack([counts, exchanges.batch, sent, exchanges.offsets_ms])


def sizes() -> dict[str, tuple[int, ...]]:
    """Return widths of the layers of each chain."""
    code = ENCODER_SIZES[-1]
    return {"encoder": (_FEATURES, *ENCODER_SIZES), "head": (3 * code, *HEAD_SIZES, 2)}


def fixed(seen: CommInputs, prior: Floats) -> dict[str, Floats]:
    """Return what is taken from training data once: scales, and ms per mean amount of work, shape (5, 1)."""
    spread = seen.features.std(axis=0)
    return {
        "fixed.feature_mean": seen.features.mean(axis=0),
        "fixed.feature_scale": np.where(spread > 1e-6, spread, 1.0),
        "fixed.work_unit": np.maximum(seen.amounts.mean(axis=0), 1e-9),
        "fixed.prior": prior,
    }


def log_ms(ops: Ops, params: Params, seen: CommInputs, groups: Groups) -> Array:
    """Return the logarithm of what an exchange takes on each device, shape (K, S, 1)."""
    x = (seen.features - params["fixed.feature_mean"]) / params["fixed.feature_scale"]
    code = ops.relu(dense(ops, params, "encoder", ops.clip(x, -FEATURE_LIMIT, FEATURE_LIMIT)))
    mean = ops.group_sum(code, groups) / _column(ops, seen.amounts, groups)
    context = ops.spread(ops.concat([mean, ops.group_max(code, groups)]), groups)
    out = dense(ops, params, "head", ops.concat([code, context]))
    transfer = (seen.amounts / params["fixed.work_unit"]) @ params["fixed.prior"]
    # A device that waits may be done a little before the others are; 1 / (1 + exp(4)) is where that starts from.
    early = 1 / (1 + ops.exp(4.0 - out[..., 1:]))
    return ops.log(transfer * ops.exp(bounded(ops, out[..., :1], LIMIT)) + seen.wait_ms * (1 - early) + 1e-6)


def _column(ops: Ops, amounts: Array, groups: Groups) -> Array:
    """Devices of each exchange, shape (G, 1): the first amount is one for each."""
    return ops.group_sum(amounts[..., :1], groups)


def exchanges_of(widths: npt.ArrayLike, offsets_ms: npt.ArrayLike, batch: float, element_bytes: float) -> Exchanges:
    """Return exchanges of P plans on D devices from arrays of shape (P, D)."""
    grid = np.asarray(widths, dtype=np.float64)
    plans, devices = grid.shape
    size = grid.size
    return Exchanges(
        Groups(np.full(plans, devices)), grid.ravel(), np.asarray(offsets_ms, dtype=np.float64).ravel(),
        np.full(size, float(batch)), np.full(size, float(element_bytes)),
    )  # fmt: skip
