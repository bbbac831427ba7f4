"""What episodes of one task are to those who choose their actions: `OneTaskGame`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.features import DEVICE_FEATURES, TIME_FEATURES

#: Places of times behind the features of a device.
NOW, WITH_NEXT = range(len(DEVICE_FEATURES), len(DEVICE_FEATURES) + len(TIME_FEATURES))


class Moments(NamedTuple):
    """What is seen in n episodes before their next actions.

    Attributes:
        episodes: their numbers, shape (n,).
        shards: numbers of their next shards in the catalog, shape (n,).
        devices: entries "devices" and "times" of the observations, shape (n, D, 9).
        rest: entries "progress", "remaining" and "splits", and "kind" in AnyWise, shape (n, 8) or (n, 10).
        valid: actions that are valid, shape (n, actions).
    """

    episodes: Ints
    shards: Ints
    devices: Floats
    rest: Floats
    valid: Bools


class OneTaskGame(Protocol):
    """N episodes of a task that are played all at once.

    Attributes:
        reason: why the first episode that got stuck did; empty where none did.
    """

    reason: str

    def moments(self) -> Moments:
        """Return what is seen in all episodes that go on; there are none once all have ended."""

    def take(self, moments: Moments, chosen: Ints) -> None:
        """Take a valid action in each of these episodes, shape (n,)."""

    def step_ms(self) -> Floats:
        """Return what the plans cost, infinite where there is none, shape (N,)."""

    def placed(self, episode: int) -> Ints:
        """Return shards in the order of placing: numbers in the catalog, first columns, (first) devices; (3, n)."""
