"""SetNetwork: scores every action of an environment, and treats devices as a set; in torch, and in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from baselines.learning.array_layers import Linear, forward, linears_of
from baselines.learning.encoder import mlp
from shardgym.arrays import Floats, Ints
from shardgym.envs.features import (
    DEVICE_FEATURES,
    REMAINING_FEATURES,
    SPLIT_FEATURES,
    TABLE_FEATURES,
    TIME_FEATURES,
)
from shardgym.ties import quantized

#: Entries that have something for every device, and how many numbers.
_PER_DEVICE = {"devices": len(DEVICE_FEATURES), "times": len(TIME_FEATURES)}

#: Of all layers.
WIDTH = 64


class SetNetwork(nn.Module):
    """Scores actions and estimates the return, from timed observations of TableWise or ColumnWise environments.

    Every device goes through one encoder: what it holds, and what it computes now and with the next shard. The scene is
    the mean over devices, the next shard, and what is left to place. One more network scores each device in the scene.
    So devices that change places change scores with each other, and any number of devices and tables will do.

    Attributes:
        halves: true when it was trained on `ShardGym/ColumnWise-v0`, whose last action halves the shard.
    """

    halves: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = mlp(len(TABLE_FEATURES), WIDTH, WIDTH)
        self.device = mlp(sum(_PER_DEVICE.values()), WIDTH, WIDTH, end_with_relu=True)
        scene = 2 * WIDTH + 1 + len(REMAINING_FEATURES) + len(SPLIT_FEATURES)
        self.device_score = mlp(scene + WIDTH, WIDTH, 1)
        self.halving_score = mlp(scene, WIDTH, 1)
        self.value = mlp(scene, WIDTH, WIDTH, 1)
        # A halving pays later, if at all. As one of D + 1 equally likely actions it would use up the limit at once.
        halving = self.halving_score[-1]
        assert isinstance(halving, nn.Linear)
        nn.init.constant_(halving.bias, -3.0)
        self.register_buffer("halves", torch.zeros((), dtype=torch.bool))

    def forward(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the scores of all actions, shape (N, actions), and the expected return, shape (N, 1).

        Args:
            seen: entries of the observation, each of shape (N, ...).
        """
        scene, devices = self._look(seen)
        return self._score(scene, devices, seen), self.value(scene)

    def scores(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Return the scores alone."""
        return self._score(*self._look(seen), seen)

    def _look(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the scene, shape (N, S), and what every device is like, shape (N, D, 64)."""
        num_devices = seen["devices"].shape[1] // _PER_DEVICE["devices"]
        features = [seen[name].reshape(-1, num_devices, width) for name, width in _PER_DEVICE.items()]
        devices = self.device(torch.cat(features, dim=2))
        exists = features[0][:, :, :1]
        mean = (devices * exists).sum(dim=1) / exists.sum(dim=1).clamp(min=1)
        # There is no halving where tables are placed whole.
        splits = seen["splits"] if "splits" in seen else mean.new_zeros(len(mean), len(SPLIT_FEATURES))
        return torch.cat([self.table(seen["table"]), mean, seen["progress"], seen["remaining"], splits], dim=1), devices

    def _score(self, scene: Tensor, devices: Tensor, seen: Mapping[str, Tensor]) -> Tensor:
        first, *others = self.device_score
        assert isinstance(first, nn.Linear)
        # The first layer is linear in the scene, which is the same for all devices: no need to repeat it.
        of_scene, of_devices = first.weight[:, : scene.shape[1]], first.weight[:, scene.shape[1] :]
        hidden = (scene @ of_scene.T + first.bias)[:, None] + devices @ of_devices.T
        for layer in others:
            hidden = layer(hidden)
        scores = hidden[:, :, 0]
        return torch.cat([scores, self.halving_score(scene)], dim=1) if "splits" in seen else scores


def observations_of(table: Floats, devices: Floats, rest: Floats) -> dict[str, Tensor]:
    """Return observations of n episodes of ColumnWise as `SetNetwork` takes them, in single precision.

    Args:
        table: entry "table", shape (n, 25).
        devices: entries "devices" and "times", shape (n, D, 9).
        rest: entries "progress", "remaining" and "splits", shape (n, 8).
    """
    of_devices, times = np.split(devices, [_PER_DEVICE["devices"]], axis=2)
    progress, remaining, splits = np.split(rest, [1, 1 + len(REMAINING_FEATURES)], axis=1)
    entries = {
        "table": table, "devices": of_devices, "times": times, "progress": progress, "remaining": remaining,
        "splits": splits,
    }  # fmt: skip
    return {name: torch.from_numpy(part.reshape(len(part), -1)).float() for name, part in entries.items()}


class ArrayScores:
    """Scores of devices, and of halving; to rounding those of `SetNetwork.scores`.

    The first layers of both scores are linear in what they see. So they are added up from what is known of all shards
    before, from what is left to place, and from what the devices hold.

    Args:
        network: with the weights; changes to them are not seen later.
        shards: features of all shards that may come up, shape (S, 25).
        halves: whether halving is scored.
    """

    def __init__(self, network: SetNetwork, shards: Floats, *, halves: bool) -> None:
        self._device = linears_of(network.device)
        into_device_score, self._device_score = linears_of(network.device_score)
        into_halving_score, self._halving_score = linears_of(network.halving_score)
        scene = len(into_halving_score.weight)
        self._of_device = into_device_score.weight[scene:]
        firsts = [Linear(into_device_score.weight[:scene], into_device_score.bias)]
        if halves:
            firsts.append(into_halving_score)
        weight = np.concatenate([first.weight for first in firsts], axis=1)
        of_table, self._of_mean, self._of_rest = np.split(weight, [WIDTH, 2 * WIDTH])
        encoded = forward(linears_of(network.table), shards)
        self._of_shards = encoded @ of_table + np.concatenate([first.bias for first in firsts])

    def of_steps(self, shards: Ints, rest: Floats) -> Floats:
        """Return the inputs of the first layers that do not depend on where shards are.

        Args:
            shards: numbers of the shards that come up in n episodes, shape (n,).
            rest: entries "progress", "remaining" and "splits" of the observations, shape (n, 8).

        Returns:
            Shape (n, 64), or (n, 128) where halving is scored.
        """
        of_steps: Floats = self._of_shards[shards] + rest @ self._of_rest
        return of_steps

    def scores(self, of_steps: Floats, devices: Floats) -> Floats:
        """Return the scores of all devices, and behind them of halving, shape (n, D + 1).

        They are quantized, see `shardgym.ties`; that of halving is minus infinity where it is not scored.

        Args:
            of_steps: see there.
            devices: entries "devices" and "times" of the observations, shape (n, D, 9).
        """
        shape = devices.shape[:2]
        flat = forward(self._device, devices.reshape(-1, devices.shape[2]), end_with_relu=True)
        scene = flat.reshape(*shape, -1).sum(axis=1) / shape[1] @ self._of_mean
        scene += of_steps
        hidden = (flat @ self._of_device).reshape(*shape, -1)
        hidden += scene[:, None, :WIDTH]
        np.maximum(hidden, 0, out=hidden)
        scores = np.full((shape[0], shape[1] + 1), -np.inf)
        scores[:, :-1] = (hidden.reshape(-1, WIDTH) @ self._device_score.weight).reshape(shape)
        scores[:, :-1] += self._device_score.bias
        if scene.shape[1] > WIDTH:
            halving = np.maximum(scene[:, WIDTH:], 0) @ self._halving_score.weight + self._halving_score.bias
            scores[:, -1] = halving[:, 0]
        return quantized(scores)
