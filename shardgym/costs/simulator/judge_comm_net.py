"""The judge's communication model: every pair of devices sends a message, every device adds up what it gets.

Another architecture than the oracle's: pairs instead of pooled context, and no analytic sum underneath.
"""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator.comm_net import Exchanges
from shardgym.costs.simulator.ops import Array, Groups, Ops, Params, dense

WIDTH = 40
_FEATURE_LIMIT = 4.0


#: Parameters that are not trained, see `fixed`.
FIXED = ("feature_mean", "feature_scale", "log_mean", "log_scale")


class PairInputs:
    """What the network sees.

    Args:
        exchanges: S devices in G exchanges.

    Attributes:
        pairs: features of each ordered pair of devices of one exchange, one receiver after the other.
        peers: groups the pairs by receiver.
        wait_ms: of each device for the one that enters last, shape (S, 1).
    """

    def __init__(self, exchanges: Exchanges) -> None:
        groups = exchanges.groups
        per_device = groups.counts[groups.ids]
        self.peers = Groups(per_device)
        mine = self.peers.ids
        theirs = np.repeat(groups.starts[groups.ids], per_device) + np.arange(len(mine)) - self.peers.starts[mine]
        share = exchanges.batch / per_device
        block = exchanges.widths * exchanges.element_bytes * share
        latest = np.maximum.reduceat(exchanges.offsets_ms, groups.starts)[groups.ids]
        lead = exchanges.offsets_ms[theirs] - exchanges.offsets_ms[mine]
        late = latest[mine] - exchanges.offsets_ms[mine]
        self.pairs = np.column_stack([
            np.cbrt(block[mine]), np.cbrt(block[theirs]), np.log1p(block[mine]), np.log1p(block[theirs]),
            np.sign(lead) * np.log1p(np.abs(lead)), np.log1p(late), mine == theirs, np.log2(per_device[mine]),
            np.log(share[mine]),
        ]).astype(np.float64)  # fmt: skip
        self.wait_ms: Floats = (latest - exchanges.offsets_ms)[:, None]

    def __len__(self) -> int:
        return len(self.wait_ms)


def sizes() -> dict[str, tuple[int, ...]]:
    """Return widths of the layers of each chain."""
    return {"pair": (9, WIDTH, WIDTH), "head": (2 * WIDTH + 1, WIDTH, 1)}


def fixed(pairs: Floats, transfer_ms: Floats) -> dict[str, Floats]:
    """Return scales of features and of logarithmic times, taken from training data once."""
    spread = pairs.std(axis=0)
    logs = np.log(transfer_ms)
    return {
        "fixed.feature_mean": pairs.mean(axis=0),
        "fixed.feature_scale": np.where(spread > 1e-6, spread, 1.0),
        "fixed.log_mean": np.array([logs.mean()]),
        "fixed.log_scale": np.array([max(float(logs.std()), 1e-3)]),
    }


def log_ms(ops: Ops, params: Params, pairs: Array, wait_ms: Array, peers: Groups) -> Array:
    """Return the logarithm of what an exchange takes on each device, shape (K, S, 1)."""
    x = (pairs - params["fixed.feature_mean"]) / params["fixed.feature_scale"]
    message = ops.relu(dense(ops, params, "pair", ops.clip(x, -_FEATURE_LIMIT, _FEATURE_LIMIT)))
    count = ops.group_sum(pairs[..., :1] * 0 + 1, peers)
    pooled = ops.concat([ops.group_sum(message, peers) / count, ops.group_max(message, peers), ops.log(count)])
    out = dense(ops, params, "head", pooled)
    return ops.log(ops.exp(params["fixed.log_mean"] + params["fixed.log_scale"] * out) + wait_ms + 1e-6)
