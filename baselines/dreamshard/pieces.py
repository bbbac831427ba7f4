"""Pieces of tables as DreamShard's networks see them, in NumPy: each is a table of fewer columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from baselines.dreamshard.policy import DreamShardNetwork
from baselines.learning.array_layers import Linear, forward, linear_of, linears_of, side_by_side
from baselines.learning.encoder import LATENT
from baselines.learning.tables import FEATURES, table_features
from shardgym.arrays import Floats
from shardgym.shard import COLUMN_UNIT
from shardgym.task import ShardingTask
from shardgym.ties import quantized

#: Columns of `table_features` that depend on how wide a piece is.
_LOG_COLUMNS = FEATURES.index("dim")
_LOG_BYTES = FEATURES.index("size")


class ArrayNetwork:
    """The cost network and the policy network as arrays; changes to their weights are not seen later.

    Layers that follow one another without a ReLU between them are one:

    - The heads' first layers take the added latents of a device's tables. What a table adds to their outputs is its
      *load*, and the load of a device is the sum over its tables and `idle`, the layers' biases.
    - The heads' last layers lead to the predicted costs that the policy sees, and on into its first layer for these.
    - The policy's own latents enter the score of a device by one linear layer, so that a number stands for a table's.

    Args:
        network: with the weights.

    Attributes:
        idle: load of a device that holds nothing, shape (192,).
        least_ms: of what `mean_table_ms` returns.
    """

    def __init__(self, network: DreamShardNetwork) -> None:
        cost, policy = network.cost, network.policy
        self._encoders = [
            (linears_of(encoder.layers), encoder.mean.numpy(), encoder.std.numpy())
            for encoder in (cost.encoder, policy.encoder)
        ]
        into_load, into_ms = side_by_side(cost.heads, cost.unit_ms[:-1])
        self._into_load, self.idle = into_load
        self._into_total_ms = into_ms.weight.sum(axis=1)
        self._idle_ms = into_ms.bias.sum()
        first, self._last = linears_of(policy.costs)
        self._first_bias = first.bias
        self._into_first = Linear(into_ms.weight @ first.weight, into_ms.bias @ first.weight)
        weight = linear_of(policy.score).weight[:, 0]
        self._of_tables = weight[:LATENT]
        self._of_costs = weight[LATENT:]
        self.least_ms = 1e-2 * float(cost.unit_ms.sum())

    def describe(self, features: Floats) -> tuple[Floats, Floats]:
        """Return what n tables add to their device.

        Args:
            features: not yet scaled, shape (n, 21).

        Returns:
            To its load, shape (n, 192), and directly to its score, shape (n,).
        """
        of_cost, of_policy = (
            forward(layers, (features - mean) / std, end_with_relu=True) for layers, mean, std in self._encoders
        )
        return of_cost @ self._into_load, of_policy @ self._of_tables

    def device_ms(self, loads: Floats) -> Floats:
        """Return predicted times of devices, all heads added and quantized: loads of shape (..., 192) become (...)."""
        return quantized(np.maximum(loads, 0) @ self._into_total_ms + self._idle_ms)

    def cost_score(self, unit_ms: float) -> Callable[[Floats], float]:
        """Return the function from a device's load, shape (192,), to what predicted costs add to its score.

        Args:
            unit_ms: that the policy counts costs in, see `mean_table_ms`.
        """
        first = Linear(self._into_first.weight / unit_ms, self._into_first.bias / unit_ms + self._first_bias)
        last = self._last
        of_costs = self._of_costs

        def score(load: Floats) -> float:
            seen = first(np.maximum(load, 0))
            np.maximum(seen, 0, out=seen)
            seen = last(seen)
            np.maximum(seen, 0, out=seen)
            return float(seen @ of_costs)

        return score


class Pieces:
    """Pieces of a task's tables under numbers, and what the networks say of each; whole tables have the first ones.

    Where the columns of a piece begin does not matter, so that equal parts of a table have one number.

    Args:
        network: says it.
        task: the task.

    Attributes:
        network: as given.
        task: as given.
        tables: table of every piece, as its position in the task.
        columns: of every piece.
        bytes: of every piece, optimiser state included.
        ms: predicted for every piece alone on a device.
        scores: what every piece adds to the policy's score of its device directly.
        loads: what every piece adds to the load of its device, shape (n, 192).
    """

    def __init__(self, network: ArrayNetwork, task: ShardingTask) -> None:
        self.network = network
        self.task = task
        self.tables: list[int] = []
        self.columns: list[int] = []
        self.bytes: list[int] = []
        self.ms: list[float] = []
        self.scores: list[float] = []
        self.loads: Floats = np.zeros((0, len(network.idle)))
        self._features = table_features(task)
        self._numbers: dict[tuple[int, int], int] = {}
        self.add((n, table.embedding_dim) for n, table in enumerate(task.tables))

    def add(self, pieces: Iterable[tuple[int, int]]) -> None:
        """Describe all pieces, given as table and columns, that were not seen before, in one call of the networks."""
        new = [piece for piece in dict.fromkeys(pieces) if piece not in self._numbers]
        if not new:
            return
        self._numbers.update(zip(new, itertools.count(len(self.tables)), strict=False))
        tables, columns = zip(*new, strict=True)
        features = self._features[list(tables)]
        log_columns = np.log(np.array(columns, dtype=np.float64))
        features[:, _LOG_BYTES] += log_columns - features[:, _LOG_COLUMNS]
        features[:, _LOG_COLUMNS] = log_columns
        loads, scores = self.network.describe(features)
        self.tables += tables
        self.columns += columns
        self.bytes += self.task.columns_bytes(np.array(tables), np.array(columns)).tolist()
        self.ms += self.network.device_ms(self.network.idle + loads).tolist()
        self.scores += scores.tolist()
        self.loads = np.concatenate([self.loads, loads])

    def cut(self, cuts: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Cut pieces into parts that are as equal as whole units of columns allow.

        Args:
            cuts: number of a piece, and into how many parts, at most as many as it has units.

        Returns:
            The numbers of the parts of each, the widest first.
        """
        parts = []
        for number, count in cuts:
            units, wider = divmod(self.units(number), count)
            widths = [units + 1] * wider + [units] * (count - wider)
            parts.append([(self.tables[number], COLUMN_UNIT * width) for width in widths])
        self.add(itertools.chain.from_iterable(parts))
        return [[self._numbers[part] for part in of_one] for of_one in parts]

    def halves(self, number: int) -> list[int]:
        """Return the numbers of both halves of a piece, which has two units of columns or more."""
        return self.cut([(number, 2)])[0]

    def device_loads(self, numbers: Sequence[int], devices: Sequence[int]) -> Floats:
        """Return the loads of all devices, shape (D, 192), of pieces and their devices, n each."""
        held = np.arange(self.task.num_devices)[:, None] == np.array(devices)
        loads: Floats = held.astype(np.float64) @ self.loads[list(numbers)]
        loads += self.network.idle
        return loads

    def units(self, number: int) -> int:
        """Return how many units of columns a piece has, which is how many parts it may be cut into."""
        return self.columns[number] // COLUMN_UNIT
