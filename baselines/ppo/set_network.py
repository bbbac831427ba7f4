"""SetNetwork: scores the actions of an environment, treating devices as a set, in torch and in NumPy."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from baselines.learning.encoder import Linear, forward, linears_of, mlp
from shardgym.arrays import Floats, Ints
from shardgym.costs.ties import quantized
from shardgym.envs.features import (
    DEVICE_FEATURES,
    KIND_FEATURES,
    REMAINING_FEATURES,
    SPLIT_FEATURES,
    TABLE_FEATURES,
    TIME_FEATURES,
)
from shardgym.envs.kind_rules import num_cuts
from shardgym.envs.shard_catalog import SplitLimits

#: Entries that have something for every device, and how many numbers.
_PER_DEVICE = {"devices": len(DEVICE_FEATURES), "times": len(TIME_FEATURES)}

#: Where "remaining", "splits" and "kind" begin in what is neither of the shard nor of devices.
_ENDS_OF_REST = np.cumsum([1, len(REMAINING_FEATURES), len(SPLIT_FEATURES)]).tolist()

#: Of all layers.
WIDTH = 64

#: Features that are shares of what all tables of a task add up to.
_SHARES = frozenset(("bytes_share", "dim_share", "lookup_share", "tables_share"))
_SHARES_OF = {
    kind: np.array([float(name in _SHARES) for name in features])
    for kind, features in (("table", TABLE_FEATURES), ("device", DEVICE_FEATURES + TIME_FEATURES))
}


class SetNetwork(nn.Module):
    """Scores actions and estimates the return, from timed observations of TableWise, ColumnWise or AnyWise.

    One encoder reads each device: its load, and its compute now and with the next shard. The scene is the mean over
    devices, the next shard, and what is left to place. Another network scores each device in the scene. The network is
    therefore equivariant to the order of devices, and handles any number of devices and tables. A shard with several
    holders scores as much as on the worst of them.

    Args:
        every_kind: whether it plays `ShardGym/AnyWise-v0`, whose last three actions halve, cut rows and replicate. The
            scene then also has the maximum over devices, the number of devices, how many hold the shard, and how many
            of its rows; shares of all tables become multiples of an even share.
    """

    #: True when it was trained where shards may be halved; the last action of `ShardGym/ColumnWise-v0` does.
    halves: Tensor

    def __init__(self, *, every_kind: bool = False) -> None:
        super().__init__()
        self.every_kind = every_kind
        self.table = mlp(len(TABLE_FEATURES), WIDTH, WIDTH)
        self.device = mlp(sum(_PER_DEVICE.values()), WIDTH, WIDTH, end_with_relu=True)
        scene = 2 * WIDTH + 1 + len(REMAINING_FEATURES) + len(SPLIT_FEATURES)
        scene += len(KIND_FEATURES) + 1 + WIDTH if every_kind else 0
        self.device_score = mlp(scene + WIDTH, WIDTH, 1)
        self.num_cuts = num_cuts(SplitLimits(0, every_kind))
        self.halving_score = mlp(scene, WIDTH, self.num_cuts)
        self.value = mlp(scene, WIDTH, WIDTH, 1)
        # A halving pays later, if at all. As one of D + 1 equally likely actions it would soon use up the limit. The
        # same holds for cuts by rows and replicas with many devices.
        halving = self.halving_score[-1]
        assert isinstance(halving, nn.Linear)
        nn.init.constant_(halving.bias, -3.0)
        self.register_buffer("halves", torch.zeros((), dtype=torch.bool))

    def forward(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the scores of all actions, shape (N, actions), and the expected return, shape (N, 1)."""
        scene, devices = self._look(seen)
        return self._score(scene, devices, seen), self.value(scene)

    def scores(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Return only the scores."""
        return self._score(*self._look(seen), seen)

    def _look(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return encodings of the scene, shape (N, S), and of every device, shape (N, D, 64)."""
        num_devices = seen["devices"].shape[1] // _PER_DEVICE["devices"]
        features = [seen[name].reshape(-1, num_devices, width) for name, width in _PER_DEVICE.items()]
        exists = features[0][:, :, :1]
        count = exists.sum(dim=1).clamp(min=1)
        table, of_devices = seen["table"], torch.cat(features, dim=2)
        if self.every_kind:
            # Shares of all tables become multiples of even shares.
            of_table, of_device = (torch.from_numpy(_SHARES_OF[kind]).to(count) for kind in ("table", "device"))
            table = table * (1 + (count - 1) * of_table)
            of_devices = of_devices * (1 + (count - 1) * of_device)[:, None]
        devices = self.device(of_devices)
        mean = (devices * exists).sum(dim=1) / count
        # There is no halving where tables are placed whole.
        splits = seen["splits"] if "splits" in seen else mean.new_zeros(len(mean), len(SPLIT_FEATURES))
        scene = [self.table(table), mean, seen["progress"], seen["remaining"], splits]
        if self.every_kind:
            # Encodings are not negative.
            scene += [seen["kind"], _log_devices(count), (devices * exists).amax(dim=1)]
        return torch.cat(scene, dim=1), devices

    def _score(self, scene: Tensor, devices: Tensor, seen: Mapping[str, Tensor]) -> Tensor:
        first, *others = self.device_score
        assert isinstance(first, nn.Linear)
        # The first layer is linear in the scene, which is the same for all devices: no need to repeat it.
        of_scene, of_devices = first.weight[:, : scene.shape[1]], first.weight[:, scene.shape[1] :]
        hidden = (scene @ of_scene.T + first.bias)[:, None] + devices @ of_devices.T
        for layer in others:
            hidden = layer(hidden)
        scores = hidden[:, :, 0]
        if self.every_kind:
            exists = seen["devices"].reshape(*scores.shape, -1)[:, :, 0].sum(dim=1)
            for holders, rows in _rows_by_holders((seen["kind"][:, 1] * exists).numpy(force=True)):
                runs = scores.shape[1] // holders
                of_runs = scores[rows, : runs * holders].reshape(len(rows), runs, holders)
                scores = scores.index_put(
                    (torch.from_numpy(rows)[:, None], torch.arange(runs) * holders), of_runs.amin(dim=2)
                )
        return torch.cat([scores, self.halving_score(scene)], dim=1) if "splits" in seen else scores


def _log_devices(count: Tensor) -> Tensor:
    """Return a logarithmic feature of the number of devices, about 1 for 256."""
    return torch.log2(count) / 8


def _rows_by_holders(holders: npt.NDArray[Any]) -> Iterator[tuple[int, Ints]]:
    """Yield each number of holders above 1 with its positions, given numbers up to rounding, shape (n,)."""
    numbers = np.rint(holders).astype(np.int64)
    for number in np.unique(numbers[numbers > 1]).tolist():
        yield number, np.flatnonzero(numbers == number)


def observations_of(table: Floats, devices: Floats, rest: Floats) -> dict[str, Tensor]:
    """Return observations of n episodes of ColumnWise or AnyWise as `SetNetwork` takes them, in single precision.

    Entries are "table", shape (n, 25); "devices" and "times", shape (n, D, 9); and "progress", "remaining", "splits"
    and in AnyWise "kind", shape (n, 8) or (n, 10).
    """
    of_devices, times = np.split(devices, [_PER_DEVICE["devices"]], axis=2)
    progress, remaining, splits, kind = np.split(rest, _ENDS_OF_REST, axis=1)
    entries = {
        "table": table, "devices": of_devices, "times": times, "progress": progress, "remaining": remaining,
        "splits": splits, "kind": kind,
    }  # fmt: skip
    return {name: torch.from_numpy(part.reshape(len(part), -1)).float() for name, part in entries.items() if part.size}


class ArrayScores:
    """Scores of all actions in NumPy, equal to `SetNetwork.scores` up to rounding, from a snapshot of the weights.

    The first layers are linear, so their outputs are sums of parts for shards, for what is left, and for devices; those
    of shards are computed in advance. `shards` are features of all shards that may come up, shape (S, 25).
    """

    def __init__(self, network: SetNetwork, shards: Floats, num_devices: int, *, halves: bool) -> None:
        self._device = linears_of(network.device)
        self._every_kind = network.every_kind
        self._num_cuts = network.num_cuts if halves else 0
        into_device_score, self._device_score = linears_of(network.device_score)
        into_halving_score, self._halving_score = linears_of(network.halving_score)
        scene = len(into_halving_score.weight)
        self._of_device = into_device_score.weight[scene:]
        firsts = [Linear(into_device_score.weight[:scene], into_device_score.bias)]
        if halves:
            firsts.append(into_halving_score)
        weight = np.concatenate([first.weight for first in firsts], axis=1)
        of_table, self._of_mean, self._of_rest = np.split(weight, [WIDTH, 2 * WIDTH])
        bias = np.concatenate([first.bias for first in firsts])
        if not halves:
            self._of_rest = self._of_rest[: -len(SPLIT_FEATURES)]
        if self._every_kind:
            self._of_rest, of_count, self._of_maximum = np.split(self._of_rest, [-1 - WIDTH, -WIDTH])
            shards = shards * (1 + (num_devices - 1) * _SHARES_OF["table"])
            bias = bias + _log_devices(torch.tensor(float(num_devices), dtype=torch.float64)).item() * of_count[0]
        encoded = forward(linears_of(network.table), shards)
        self._of_shards = encoded @ of_table + bias

    def of_steps(self, shards: Ints, rest: Floats) -> Floats:
        """Return the part of the first layers' outputs that placements do not change, (n, 64) or (n, 128)."""
        of_steps: Floats = self._of_shards[shards] + rest @ self._of_rest
        return of_steps

    def scores(self, of_steps: Floats, devices: Floats, holders: Ints | None = None) -> Floats:
        """Return the scores of devices, then of halving, shape (n, D + 1), or of all cuts, (n, D + 3).

        Scores are quantized, see `shardgym.costs.ties`. `devices` are as in `Moments`, `holders` those of shards, (n,).
        """
        shape = devices.shape[:2]
        if self._every_kind:
            devices = devices * (1 + (shape[1] - 1) * _SHARES_OF["device"])
        flat = forward(self._device, devices.reshape(-1, devices.shape[2]), end_with_relu=True)
        scene = flat.reshape(*shape, -1).sum(axis=1) / shape[1] @ self._of_mean
        scene += of_steps
        if self._every_kind:
            scene += flat.reshape(*shape, -1).max(axis=1) @ self._of_maximum
        hidden = (flat @ self._of_device).reshape(*shape, -1)
        hidden += scene[:, None, :WIDTH]
        np.maximum(hidden, 0, out=hidden)
        scores = np.empty((shape[0], shape[1] + self._num_cuts))
        of_devices = scores[:, : shape[1]]
        of_devices[:] = (hidden.reshape(-1, WIDTH) @ self._device_score.weight).reshape(shape)
        of_devices += self._device_score.bias
        if holders is not None:
            for number, rows in _rows_by_holders(holders):
                runs = shape[1] // number
                of_runs = of_devices[rows, : runs * number].reshape(len(rows), runs, number)
                of_devices[rows, : runs * number : number] = of_runs.min(axis=2)
        if scene.shape[1] > WIDTH:
            halving = np.maximum(scene[:, WIDTH:], 0) @ self._halving_score.weight + self._halving_score.bias
            scores[:, shape[1] :] = halving
        return quantized(scores)
