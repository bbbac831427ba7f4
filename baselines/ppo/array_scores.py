"""The scores of SetNetwork in NumPy, for one episode."""

from __future__ import annotations

import numpy as np

from baselines.learning.array_layers import Float32s, Linear, forward, linears_of
from baselines.ppo.set_network import WIDTH, SetNetwork


class ArrayScores:
    """Scores of devices, and of halving; to rounding those of `SetNetwork.scores`.

    The first layers of both scores are linear in what they see. So they are added up from what is known of many steps
    before, the shard and what is left to place, and from what the devices hold.

    Args:
        network: with the weights; changes to them are not seen later.
        shards: features of all shards that may come up, shape (S, 25).
        halves: whether halving is scored.
    """

    def __init__(self, network: SetNetwork, shards: Float32s, *, halves: bool) -> None:
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

    def of_steps(self, shards: list[int], rest: Float32s) -> Float32s:
        """Return what is known before: inputs of the first layers that do not depend on where shards are.

        Args:
            shards: number of the shard that comes up in each of n steps.
            rest: entries "progress", "remaining" and "splits" of the observation, shape (n, 8).

        Returns:
            Shape (n, 64), or (n, 128) where halving is scored.
        """
        of_steps: Float32s = self._of_shards[shards] + rest @ self._of_rest
        return of_steps

    def scores(self, of_step: Float32s, devices: Float32s) -> tuple[Float32s, float]:
        """Return the scores of all devices, shape (D,), and that of halving, minus infinity where it is not scored.

        Args:
            of_step: a row of `of_steps`.
            devices: entries "devices" and "times" of the observation, shape (D, 9).
        """
        devices = forward(self._device, devices, end_with_relu=True)
        scene = np.add.reduce(devices) / np.float32(len(devices)) @ self._of_mean
        scene += of_step
        hidden = devices @ self._of_device
        hidden += scene[:WIDTH]
        np.maximum(hidden, 0, out=hidden)
        scores: Float32s = np.asarray(hidden @ self._device_score.weight, dtype=np.float32)[:, 0]
        scores += self._device_score.bias
        if len(scene) == WIDTH:
            return scores, -np.inf
        halving = np.maximum(scene[WIDTH:], 0) @ self._halving_score.weight + self._halving_score.bias
        return scores, float(halving[0])
