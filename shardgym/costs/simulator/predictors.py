"""Trained networks in NumPy, in double precision: the oracle's and the judge's behind one interface."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator import comm_net, compute_net, judge_comm_net, judge_compute_net
from shardgym.costs.simulator.comm_net import Exchanges
from shardgym.costs.simulator.ops import NUMPY, Array, Groups, Params
from shardgym.costs.simulator.samples import Shards
from shardgym.costs.simulator.weights import Weights


class Compute(NamedTuple):
    """Compute times of G device contents.

    Attributes:
        ms: forward and backward, shape (G, 2).
        spread: standard deviation of the members' logarithmic totals, shape (G,): their relative disagreement.
    """

    ms: Floats
    spread: Floats


class Predictor(Protocol):
    """What serves predictions. What `encode` returns has one row per shard, whatever follows.

    Attributes:
        predicts_exchanges: whether `exchange_ms` can be asked.
    """

    predicts_exchanges: bool

    def encode(self, shards: Shards) -> Array:
        """Work out what does not depend on what else a device holds, shape (S, ...)."""

    def compute(self, encoded: Array, groups: Groups) -> Compute:
        """Predict times of device contents from encoded shards in consecutive groups."""

    def exchange_ms(self, exchanges: Exchanges, *, backward: bool) -> Floats:
        """Predict what exchanges take on each device in ms, shape (S,)."""


def member(params: Params, number: int) -> Params:
    """Return the parameters of one network of an ensemble, without the axis of members."""
    return {name: value if name.startswith("fixed.") else value[number] for name, value in params.items()}


def _spread(log_ms: Array) -> Floats:
    """Disagreement of members, (K, G, 2) to (G,)."""
    return np.asarray(np.log(np.exp(log_ms).sum(axis=-1)).std(axis=0), dtype=np.float64)


class OraclePredictor:
    """The oracle: its best member predicts, the others say how sure that is.

    Args:
        weights: of role "oracle".

    Attributes:
        best: parameters of the best compute network.
        comm: parameters of the exchange networks, "forward" and "backward", if there are any.
    """

    def __init__(self, weights: Weights) -> None:
        self.predicts_exchanges = weights.predicts_exchanges
        self._compute = weights.networks["compute"]
        self.best = member(self._compute, 0)
        self.comm = {name: member(params, 0) for name, params in weights.networks.items() if name != "compute"}

    def encode(self, shards: Shards) -> Array:
        """Return the latents of all members, shape (S, K, 32)."""
        return np.swapaxes(compute_net.encode(NUMPY, self._compute, *compute_net.inputs(shards)), 0, 1)

    def compute(self, encoded: Array, groups: Groups) -> Compute:
        """Predict from latents; see `Predictor`."""
        sums = np.add.reduceat(encoded, groups.starts, axis=0)
        log_ms = compute_net.head(NUMPY, self._compute, np.swapaxes(sums, 0, 1))
        return Compute(self.head_ms(sums[:, 0]), _spread(log_ms))

    def head_ms(self, sums: Floats) -> Floats:
        """Return forward and backward ms from added latents of the best member, (G, 32) to (G, 2)."""
        return np.asarray(np.exp(compute_net.head(NUMPY, self.best, sums)), dtype=np.float64)

    def exchange_ms(self, exchanges: Exchanges, *, backward: bool) -> Floats:
        """See `Predictor`."""
        params = self.comm["backward" if backward else "forward"]
        log_ms = comm_net.log_ms(NUMPY, params, comm_net.inputs(exchanges), exchanges.groups)
        return np.asarray(np.exp(log_ms[:, 0]), dtype=np.float64)


class JudgePredictor:
    """The judge: the geometric mean of its members.

    Args:
        weights: of role "judge".
    """

    def __init__(self, weights: Weights) -> None:
        self.predicts_exchanges = weights.predicts_exchanges
        self._networks = weights.networks

    def encode(self, shards: Shards) -> Array:
        """Return features: what the judge makes of a shard depends on the others; shape (S, 27)."""
        return judge_compute_net.inputs(shards)[0]

    def compute(self, encoded: Array, groups: Groups) -> Compute:
        """See `Predictor`."""
        log_ms = judge_compute_net.log_ms(NUMPY, self._networks["compute"], encoded, groups)
        return Compute(np.asarray(np.exp(log_ms.mean(axis=0)), dtype=np.float64), _spread(log_ms))

    def exchange_ms(self, exchanges: Exchanges, *, backward: bool) -> Floats:
        """See `Predictor`."""
        seen = judge_comm_net.PairInputs(exchanges)
        params = self._networks["backward" if backward else "forward"]
        log_ms = judge_comm_net.log_ms(NUMPY, params, seen.pairs, seen.wait_ms, seen.peers)
        return np.asarray(np.exp(log_ms.mean(axis=0)[:, 0]), dtype=np.float64)


def predictor_of(weights: Weights) -> OraclePredictor | JudgePredictor:
    """Return what serves these weights."""
    return OraclePredictor(weights) if weights.role == "oracle" else JudgePredictor(weights)
