"""The judge's networks.

Another architecture than the oracle's on purpose, so that what exploits the oracle's errors does not please the judge:
no analytic sums underneath, other features, shards that see each other, and messages between pairs of devices.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import SHARD_FEATURES, Exchanges, Groups, Shards, judge_features
from shardgym.costs.simulator.network import Array, ComputeTimes, Network, Params, disagreement, scale_of


class JudgeComputeNet(Network):
    """Shards of a device look at each other before they are pooled.

    Instead of added latents there are two rounds of pooling (sum, mean and largest), the second after every shard has
    seen what the first found. So it cannot be evaluated by adding vectors.
    """

    FIXED = ("feature_mean", "feature_scale", "log_mean", "log_scale", "mean_count")
    # A pool is three vectors and a count.
    SIZES: ClassVar = {"encoder": (SHARD_FEATURES, 64, 64), "mixer": (4 * 64 + 1, 64, 64), "head": (3 * 64 + 1, 64, 2)}

    @staticmethod
    def fixed_params(features: Floats, counts: Ints, ms: Floats) -> dict[str, Floats]:
        """Return scales of features and of logarithmic times, taken from training data once.

        Args:
            features: of all shards, shape (S, 27).
            counts: shards of each sample, shape (N,).
            ms: forward and backward, shape (N, 2).
        """
        return {
            "fixed.feature_mean": features.mean(axis=0),
            "fixed.feature_scale": scale_of(features),
            "fixed.log_mean": np.log(ms).mean(axis=0),
            "fixed.log_scale": np.maximum(np.log(ms).std(axis=0), 1e-3),
            "fixed.mean_count": np.array([counts.mean()]),
        }

    def log_ms(self, features: Array, groups: Groups) -> Array:
        """Return the logarithms of forward and backward ms of whole devices, shape (K, G, 2)."""
        ops = self.ops
        first = ops.relu(self.dense("encoder", self.standardise(features)))
        # Ones of the features' own library and type.
        counts = ops.group_sum(features[..., :1] * 0 + 1, groups)
        context = ops.repeat(self._pool(first, counts, groups), groups)
        second = ops.relu(self.dense("mixer", ops.concat([first, context])))
        out = self.dense("head", self._pool(second, counts, groups))
        return self.fixed("log_mean") + self.fixed("log_scale") * out

    def _pool(self, x: Array, counts: Array, groups: Groups) -> Array:
        """Return sum, mean and largest over each group and the logarithm of its size, (K, S, C) to (K, G, 3 C + 1)."""
        total = self.ops.group_sum(x, groups)
        scaled = self.ops.log(1 + total / self.fixed("mean_count"))
        return self.ops.concat([scaled, total / counts, self.ops.group_max(x, groups), self.ops.log(counts)])


class DevicePairs:
    """What `JudgeCommNet` sees.

    Args:
        exchanges: S devices in G exchanges.

    Attributes:
        features: of each ordered pair of devices of one exchange, one receiver after the other, shape (N, 9).
        receivers: groups the pairs by receiver.
        wait_ms: of each device for the one that enters last, shape (S, 1).
    """

    def __init__(self, exchanges: Exchanges) -> None:
        groups = exchanges.groups
        devices = groups.counts[groups.ids]
        self.receivers = Groups(devices)
        mine = self.receivers.ids
        position = np.arange(len(mine)) - self.receivers.starts[mine]
        theirs = np.repeat(groups.starts[groups.ids], devices) + position
        samples = exchanges.batch / devices
        block_bytes = exchanges.widths * exchanges.element_bytes * samples
        latest = np.maximum.reduceat(exchanges.offsets_ms, groups.starts)[groups.ids]
        # Who starts later than the receiver delays its message; who is earlier waits for the last one.
        lead = exchanges.offsets_ms[theirs] - exchanges.offsets_ms[mine]
        late = latest[mine] - exchanges.offsets_ms[mine]
        self.features: Floats = np.column_stack([
            np.cbrt(block_bytes[mine]), np.cbrt(block_bytes[theirs]), np.log1p(block_bytes[mine]),
            np.log1p(block_bytes[theirs]), np.sign(lead) * np.log1p(np.abs(lead)), np.log1p(late), mine == theirs,
            np.log2(devices[mine]), np.log(samples[mine]),
        ]).astype(np.float64)  # fmt: skip
        self.wait_ms: Floats = (latest - exchanges.offsets_ms)[:, None]


class JudgeCommNet(Network):
    """Every pair of devices sends a message, every device adds up what it gets."""

    FIXED = ("feature_mean", "feature_scale", "log_mean", "log_scale")
    # The head sees the mean and the largest message, and their number.
    SIZES: ClassVar = {"pair": (9, 40, 40), "head": (2 * 40 + 1, 40, 1)}

    @staticmethod
    def fixed_params(features: Floats, transfer_ms: Floats) -> dict[str, Floats]:
        """Return scales of features and of logarithmic times, taken from training data once.

        Args:
            features: of all pairs, shape (N, 9).
            transfer_ms: of each device, without the wait, shape (S,).
        """
        logs = np.log(transfer_ms)
        return {
            "fixed.feature_mean": features.mean(axis=0),
            "fixed.feature_scale": scale_of(features),
            "fixed.log_mean": np.array([logs.mean()]),
            "fixed.log_scale": np.array([max(float(logs.std()), 1e-3)]),
        }

    def log_ms(self, features: Array, wait_ms: Array, receivers: Groups) -> Array:
        """Return the logarithm of what an exchange takes on each device, shape (K, S, 1)."""
        ops = self.ops
        message = ops.relu(self.dense("pair", self.standardise(features)))
        count = ops.group_sum(features[..., :1] * 0 + 1, receivers)
        mean = ops.group_sum(message, receivers) / count
        pooled = ops.concat([mean, ops.group_max(message, receivers), ops.log(count)])
        transfer_ms = ops.exp(self.fixed("log_mean") + self.fixed("log_scale") * self.dense("head", pooled))
        return ops.log(transfer_ms + wait_ms + 1e-6)


class JudgeNetworks:
    """The judge: the geometric mean of its members. See `Networks`.

    Args:
        networks: parameters by name, see `Weights`.

    Attributes:
        encoded_shape: features alone, as what the judge makes of a shard depends on the others.
    """

    def __init__(self, networks: dict[str, Params]) -> None:
        self.encoded_shape: tuple[int, ...] = (SHARD_FEATURES,)
        self._compute = JudgeComputeNet(networks["compute"])
        self._comm = {name: JudgeCommNet(params) for name, params in networks.items() if name != "compute"}

    def encode(self, shards: Shards) -> Floats:
        """Return features, shape (S, 27)."""
        return judge_features(shards)

    def compute(self, encoded: Floats, groups: Groups) -> ComputeTimes:
        """See `Networks`."""
        log_ms = self._compute.log_ms(encoded, groups)
        return ComputeTimes(np.exp(log_ms.mean(axis=0)), disagreement(log_ms))

    def exchange_ms(self, exchanges: Exchanges, *, backward: bool) -> Floats:
        """See `Networks`."""
        pairs = DevicePairs(exchanges)
        net = self._comm["backward" if backward else "forward"]
        log_ms = net.log_ms(pairs.features, pairs.wait_ms, pairs.receivers)
        return np.asarray(np.exp(log_ms.mean(axis=0)[:, 0]), dtype=np.float64)
