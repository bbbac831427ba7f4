"""The oracle's networks: compute from added latents, exchanges for any number of devices."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import (
    SHARD_FEATURES,
    WORK_NAMES,
    Exchanges,
    Groups,
    Shards,
    oracle_features,
    work,
)
from shardgym.costs.simulator.network import Array, ComputeTimes, Network, Params, disagreement, member, scale_of
from shardgym.ties import QUANTUM

#: A device that waits for less waits for nobody. Of devices that are equal, rounding alone would say who waits.
NO_WAIT_MS = QUANTUM / 2


class ComputeNet(Network):
    """A deep set over the shards of a device, on top of a fitted analytic sum.

    Every shard becomes a *latent*: its own forward and backward time, its amounts of work, and what an encoder makes
    of its features. Latents are added up over the shards of a device. A head turns the sum into times: the added
    times, multiplied by a correction that depends on how much work there is in all and on the mean of the encoder's
    outputs. So adding a shard is one vector addition and one call of the head, and no time can be negative.

    The published model (NeuroShard, `compute_cost_model.py`) sums encodings too, but its head has to produce times of
    all magnitudes from them, and can go below zero.

    Attributes:
        TIMES: numbers of a latent that are times: forward and backward ms.
        WORK: numbers that are amounts of work, in units of the mean shard; the first one counts shards.
        ENCODING: numbers that the encoder makes of the features.
        LATENT: all of them.
        SHARD_LIMIT: a shard's time stays within a factor of exp(1.5) of the analytic one.
        DEVICE_LIMIT: a device's time stays within a factor of e of its shards' sum.
        LEAST_WORK: keeps logarithms of work finite.
    """

    TIMES = 2
    WORK = len(WORK_NAMES)
    ENCODING = 22
    LATENT = TIMES + WORK + ENCODING
    SHARD_LIMIT = 1.5
    DEVICE_LIMIT = 1.0
    LEAST_WORK = 1e-3
    FIXED: ClassVar[tuple[str, ...]] = (
        "feature_mean",
        "feature_scale",
        "work_unit",
        "scalar_mean",
        "scalar_scale",
        "prior",
        "device_ms",
    )
    SIZES: ClassVar = {"encoder": (SHARD_FEATURES, 64, 64, TIMES + ENCODING), "head": (LATENT, 64, 64, TIMES)}

    @staticmethod
    def inputs(shards: Shards) -> tuple[Floats, Floats]:
        """Return features of shape (S, 27) and amounts of work of shape (S, 8)."""
        return oracle_features(shards), work(shards)

    @staticmethod
    def fixed_params(
        features: Floats, amounts: Floats, counts: Ints, prior: Floats, device_ms: Floats
    ) -> dict[str, Floats]:
        """Return what is taken from training data once and not trained afterwards.

        Args:
            features: of all shards, shape (S, 27).
            amounts: of work, shape (S, 8).
            counts: shards of each sample, shape (N,).
            prior: ms per mean amount of work, forward and backward, shape (8, 2).
            device_ms: ms per device, shape (2,).
        """
        unit = np.maximum(amounts.mean(axis=0), 1e-9)
        totals = np.add.reduceat(amounts / unit, Groups(counts).starts, axis=0)
        scalars = np.log(np.hstack([totals @ prior + device_ms, totals]) + ComputeNet.LEAST_WORK)
        return {
            "fixed.feature_mean": features.mean(axis=0),
            "fixed.feature_scale": scale_of(features),
            "fixed.work_unit": unit,
            "fixed.scalar_mean": scalars.mean(axis=0),
            "fixed.scalar_scale": scale_of(scalars),
            "fixed.prior": prior,
            "fixed.device_ms": device_ms,
        }

    def encode(self, features: Array, amounts: Array) -> Array:
        """Return the latents of shards, shape (K, S, 32)."""
        scaled = amounts / self.fixed("work_unit")
        # The analytic times carry the magnitudes; the encoder only corrects them by bounded factors.
        encoded = self.dense("encoder", self.standardise(features))
        factors = self.ops.exp(self.bounded(encoded[..., : self.TIMES], self.SHARD_LIMIT))
        return self.ops.concat([(scaled @ self.fixed("prior")) * factors, scaled, encoded[..., self.TIMES :]])

    def head(self, sums: Array) -> Array:
        """Return the logarithms of forward and backward ms of devices that hold at least one shard.

        Args:
            sums: added latents of each device, shape (K, G, 32).

        Returns:
            Shape (K, G, 2).
        """
        base = sums[..., : self.TIMES] + self.fixed("device_ms")
        totals = sums[..., self.TIMES : self.TIMES + self.WORK]
        # The first amount of work counts shards, in units of the mean, which is one.
        mean = sums[..., self.TIMES + self.WORK :] / totals[..., :1]
        log_base = self.ops.log(base + 1e-9)
        scalars = self.ops.concat([log_base, self.ops.log(totals + self.LEAST_WORK)])
        x = (scalars - self.fixed("scalar_mean")) / self.fixed("scalar_scale")
        seen = self.ops.concat([self.ops.clip(x, -self.FEATURE_LIMIT, self.FEATURE_LIMIT), mean])
        return log_base + self.bounded(self.dense("head", seen), self.DEVICE_LIMIT)

    def log_ms(self, features: Array, amounts: Array, groups: Groups) -> Array:
        """Return the logarithms of forward and backward ms of whole devices, shape (K, G, 2)."""
        return self.head(self.ops.group_sum(self.encode(features, amounts), groups))


class CommInputs(NamedTuple):
    """What `CommNet` sees of each device: features (S, 15), analytic amounts (S, 5), wait in ms (S, 1)."""

    features: Array
    amounts: Array
    wait_ms: Array


class CommNet(Network):
    """One set of weights for exchanges of any number of devices, forward or backward.

    Every device is described by its own amounts and those of the whole exchange. A shared encoder makes a vector of
    each, and the mean and the largest of them over devices are handed back to everybody. A shared head says what the
    exchange takes on each device: a fitted analytic sum times a correction, plus the wait for the device that enters
    last. Numbering the devices differently renumbers the result.

    The published models (NeuroShard, `comm_cost_model.py`) are separate nets for every number of devices and depend on
    their order.

    Attributes:
        LIMIT: transfers stay within a factor of exp(1.5) of the analytic ones.
    """

    LIMIT = 1.5
    FIXED = ("feature_mean", "feature_scale", "work_unit", "prior")
    # The head sees a device's code, the mean and the largest.
    SIZES: ClassVar = {"encoder": (15, 48, 32), "head": (3 * 32, 48, 2)}

    @staticmethod
    def inputs(exchanges: Exchanges) -> CommInputs:
        """Work out features, amounts of work and waits."""
        groups = exchanges.groups
        starts, ids = groups.starts, groups.ids
        # What is the same for all devices of an exchange is worked out once, and logarithms of it are taken once.
        counts = groups.counts.astype(np.float64)
        batch, element_bytes = exchanges.batch[starts], exchanges.element_bytes[starts]
        # Every device ends up with its share of the samples: all columns of them, from all devices.
        samples = batch / counts
        elsewhere = batch - samples
        row_bytes = exchanges.widths * exchanges.element_bytes
        total = np.add.reduceat(row_bytes, starts)
        largest = np.maximum.reduceat(row_bytes, starts)
        wait = np.maximum.reduceat(exchanges.offsets_ms, starts)[ids] - exchanges.offsets_ms
        longest = np.maximum.reduceat(wait, starts)
        moved, busiest = total * elsewhere, largest * elsewhere
        whole = np.log([counts, batch, element_bytes, 1 + moved, 1 + busiest, 1 + longest])
        whole_mean_wait = np.log1p(np.add.reduceat(wait, starts) / counts)
        sent = row_bytes * elsewhere[ids]
        received = (total[ids] - row_bytes) * samples[ids]
        features = np.empty((len(wait), 15))
        features[:, :5] = whole[:5].T[ids]
        features[:, 5:7] = np.log1p([sent, received]).T
        features[:, 7] = row_bytes / np.maximum(largest, 1.0)[ids]
        features[:, 8] = row_bytes * (counts / np.maximum(total, 1.0))[ids]
        features[:, 9] = np.log1p(wait)
        features[:, 10], features[:, 11] = whole[5][ids], whole_mean_wait[ids]
        features[:, 12] = wait / np.maximum(longest, 1e-3)[ids]
        features[:, 13], features[:, 14] = wait < NO_WAIT_MS, row_bytes == 0
        amounts = np.empty((len(wait), 5))
        amounts[:, 0] = 1.0
        amounts[:, 1:4] = np.stack([counts, moved, busiest], axis=1)[ids]
        amounts[:, 4] = sent + received
        return CommInputs(features, amounts, wait[:, None])

    @staticmethod
    def fixed_params(inputs: CommInputs, prior: Floats) -> dict[str, Floats]:
        """Return what is taken from training data once: scales, and ms per mean amount of work, shape (5, 1)."""
        return {
            "fixed.feature_mean": inputs.features.mean(axis=0),
            "fixed.feature_scale": scale_of(inputs.features),
            "fixed.work_unit": np.maximum(inputs.amounts.mean(axis=0), 1e-9),
            "fixed.prior": prior,
        }

    def log_ms(self, inputs: CommInputs, groups: Groups) -> Array:
        """Return the logarithm of what an exchange takes on each device, shape (K, S, 1)."""
        ops = self.ops
        # What all devices of an exchange share is symmetric in them, so their numbering does not matter.
        code = ops.relu(self.dense("encoder", self.standardise(inputs.features)))
        # The first amount is one for each device.
        devices = ops.group_sum(inputs.amounts[..., :1], groups)
        context = ops.concat([ops.group_sum(code, groups) / devices, ops.group_max(code, groups)])
        # It goes through the first layer once.
        first = self.params["head.0.weight"]
        size = code.shape[-1]
        shared = context @ first[..., size:, :] + self.params["head.0.bias"]
        out = self.dense("head", code @ first[..., :size, :] + ops.repeat(shared, groups), after=1)
        transfer = (inputs.amounts / self.fixed("work_unit")) @ self.fixed("prior")
        # A device that waits may be done a little before the others are; 1 / (1 + exp(4)) is where that starts from.
        early = 1 / (1 + ops.exp(4.0 - out[..., 1:]))
        correction = ops.exp(self.bounded(out[..., :1], self.LIMIT))
        return ops.log(transfer * correction + inputs.wait_ms * (1 - early) + 1e-6)


class OracleNetworks:
    """The oracle: its best member predicts, the others say how sure that is. See `Networks`.

    Args:
        networks: parameters by name, see `Weights`.
        compute: class of the compute network.
        comm: class of the networks of exchanges.

    Attributes:
        encoded_shape: K latents.
        best: parameters of the best compute network.
        comm: parameters of the best "forward" and "backward" network, if there are any.
    """

    def __init__(
        self, networks: dict[str, Params], compute: type[ComputeNet] = ComputeNet, comm: type[CommNet] = CommNet
    ) -> None:
        self.best = member(networks["compute"], 0)
        self.comm = {name: member(params, 0) for name, params in networks.items() if name != "compute"}
        self.encoded_shape: tuple[int, ...] = len(networks["compute"]["encoder.0.weight"]), ComputeNet.LATENT
        self._ensemble = compute(networks["compute"])
        self._best = compute(self.best)
        self._comm = {name: comm(params) for name, params in self.comm.items()}

    def encode(self, shards: Shards) -> Floats:
        """Return the latents of all members, shape (S, K, 32)."""
        return np.swapaxes(self._ensemble.encode(*self._ensemble.inputs(shards)), 0, 1)

    def compute(self, encoded: Floats, groups: Groups) -> ComputeTimes:
        """See `Networks`."""
        sums = np.add.reduceat(encoded, groups.starts, axis=0)
        # The largest array of all; its memory serves what follows.
        del encoded
        log_ms = self._ensemble.head(np.swapaxes(sums, 0, 1))
        return ComputeTimes(np.exp(log_ms[0]), disagreement(log_ms))

    def compute_ms(self, sums: Floats) -> Floats:
        """Return forward and backward ms from added latents of the best member, (G, 32) to (G, 2)."""
        return np.asarray(np.exp(self._best.head(sums)), dtype=np.float64)

    def exchange_ms(self, exchanges: Exchanges, *, backward: bool) -> Floats:
        """See `Networks`."""
        net = self._comm["backward" if backward else "forward"]
        return np.asarray(np.exp(net.log_ms(CommNet.inputs(exchanges), exchanges.groups)[:, 0]), dtype=np.float64)
