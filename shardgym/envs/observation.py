"""Observations of placements, their layout and their spaces."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.arrays import Bools, Floats
from shardgym.envs.features import (
    BYTES,
    DEVICE_FEATURES,
    KIND_FEATURES,
    REMAINING_FEATURES,
    SHARDS,
    SPLIT_FEATURES,
    TABLE_FEATURES,
    TIME_FEATURES,
    Float32s,
    remaining_features,
)
from shardgym.envs.kind_rules import num_cuts
from shardgym.envs.placements import Placements
from shardgym.envs.shard_catalog import NOTHING, SplitLimits
from shardgym.errors import InputError, short_repr

Observation = dict[str, npt.NDArray[np.generic]]

OBSERVATIONS = ("compact", "full", "timed", "full_timed")


@dataclass(frozen=True)
class Layout:
    """Limits that determine the shapes of observations."""

    max_devices: int  #: maximum number of devices of a task, D
    max_splits: int | None = None  #: maximum number of halvings in an episode; None if tables are placed whole
    max_tables: int | None = None  #: maximum number of tables of a task; None if observations do not list all tables
    timed: bool = False  #: whether observations have predicted times
    every_kind: bool = False  #: whether shards may be cut by rows, and tables replicated
    #: Names of all numbers and of the mask, if observations are these two arrays.
    flat: tuple[str, str] | None = None

    @property
    def actions(self) -> int:
        """Number of actions: one per device, and those that cut or replicate, see `kind_rules.py`."""
        limits = None if self.max_splits is None else SplitLimits(self.max_splits, every_kind=self.every_kind)
        return self.max_devices + num_cuts(limits)

    @property
    def max_shards(self) -> int:
        """Number of rows of full observations, S."""
        return (self.max_tables or 0) + (self.max_splits or 0)

    @property
    def most_even_shares(self) -> float:
        """Upper bound of predicted times: all tables on one of D devices take D even shares, and halves a bit more."""
        return 2.0 * self.max_devices

    @functools.cached_property
    def splits_left(self) -> Float32s:
        """Share of halvings left after 0, 1, 2, ... of them, shape (max_splits + 1,); 0 if `max_splits` is 0."""
        most = self.max_splits or 0
        return (1 - np.arange(most + 1) / most).astype(np.float32) if most else np.zeros(1, np.float32)


def observation_space(layout: Layout) -> spaces.Dict:
    """Return the space of observations: boxes of one dimension with finite bounds."""
    shares = {
        "table": len(TABLE_FEATURES), "devices": layout.max_devices * len(DEVICE_FEATURES), "progress": 1,
        "remaining": len(REMAINING_FEATURES),
    }  # fmt: skip
    flags = {"action_mask": layout.actions}
    entries: dict[str, spaces.Space[Any]] = {}
    if layout.max_splits is not None:
        shares["splits"] = len(SPLIT_FEATURES)
    if layout.every_kind:
        shares["kind"] = len(KIND_FEATURES)
    if layout.max_tables is not None:
        rows = layout.max_shards
        shares |= {"tables": rows * len(TABLE_FEATURES), "width_shares": rows}
        flags |= {"waiting": rows, "membership": rows * layout.max_devices}
        if layout.every_kind:
            shares["row_shares"] = rows
        entries["positions"] = spaces.Box(0, layout.max_tables, (rows,), np.int32)
    if layout.timed:
        times = layout.max_devices * len(TIME_FEATURES)
        entries["times"] = spaces.Box(0.0, layout.most_even_shares, (times,), np.float32)
    entries |= {name: spaces.Box(0.0, 1.0, (size,), np.float32) for name, size in shares.items()}
    entries |= {name: spaces.Box(0, 1, (size,), np.int8) for name, size in flags.items()}
    if layout.flat is None:
        return spaces.Dict(entries)
    if not (isinstance(layout.flat, tuple) and len(set(layout.flat)) == len(layout.flat) == 2):
        raise InputError(f"flat: expected different names of numbers and mask, got {short_repr(layout.flat)}")
    mask = entries.pop("action_mask")
    return spaces.Dict({layout.flat[0]: spaces.flatten_space(spaces.Dict(entries)), layout.flat[1]: mask})


def observe(placements: Placements, layout: Layout, masks: Bools, time_shares: Floats | None = None) -> Observation:
    """Return the observations of N placements, as arrays that later steps do not change.

    `masks` are the valid actions, shape (N, actions), which are not copied, and `time_shares` those of `PlanScorer`.
    """
    catalog = placements.catalog
    next_shard = placements.next
    observation: Observation = {
        "table": catalog.shard["features"][next_shard],
        "devices": _devices(placements),
        "progress": (placements.placed / placements.scale[:, SHARDS]).astype(np.float32)[:, None],
        "remaining": remaining_features(placements.left, placements.scale),
        "action_mask": masks.view(np.int8),
    }
    if layout.max_splits is not None:
        splits = np.empty((len(next_shard), len(SPLIT_FEATURES)), np.float32)
        splits[:, 0] = layout.splits_left[placements.splits]
        splits[:, 1] = catalog.shard["width_share"][next_shard]
        observation["splits"] = splits
    if placements.kinds is not None:
        kind = catalog.kind
        shares = np.empty((len(next_shard), len(KIND_FEATURES)), np.float32)
        shares[:, 0] = kind["row_share"][next_shard]
        shares[:, 1] = kind["holders"][next_shard] / catalog.task["num_devices"][placements.task]
        shares[next_shard == NOTHING, 1] = 0.0
        observation["kind"] = shares
    if time_shares is not None:
        times = np.minimum(time_shares, layout.most_even_shares)
        observation["times"] = times.astype(np.float32).reshape(len(next_shard), -1)
    if layout.max_tables is not None:
        observation |= _every_shard(placements, layout)
    if layout.flat is None:
        return observation
    mask = observation.pop("action_mask")
    # `spaces.Dict` sorts names.
    numbers = np.concatenate([observation[name] for name in sorted(observation)], axis=1, dtype=np.float32)
    return {layout.flat[0]: numbers, layout.flat[1]: mask}


def _devices(placements: Placements) -> Float32s:
    features = placements.catalog.task["devices"][placements.task]
    exists = features[:, :, 0]
    # Devices that do not exist use 0 of -1 bytes; one whose memory is all reserved is full.
    capacity = placements.capacity
    used = np.divide(placements.loads[:, :, BYTES], capacity, out=np.ones(capacity.shape), where=capacity != 0)
    np.subtract(exists, used, out=features[:, :, 1], casting="same_kind")
    # Halves duplicate optimiser state per row, so loads may add up to more than the bytes of the task.
    shares = placements.loads / placements.scale[:, None, :]
    np.minimum(shares, 1.0, out=features[:, :, 3:], casting="same_kind")
    return features.reshape(len(features), -1)


def _every_shard(placements: Placements, layout: Layout) -> Observation:
    """Return the entries of full observations: placed shards in the order of placing, waiting ones, then zeros."""
    shard = placements.catalog.shard
    shards = placements.shards[:, : layout.max_shards]
    devices = placements.devices[:, : layout.max_shards]
    membership = devices[:, :, None] == np.arange(layout.max_devices)
    more: Observation = {}
    if placements.kinds is not None:
        kind = placements.catalog.kind
        last = np.where(devices >= 0, devices + kind["holders"][shards], 0)
        membership = np.arange(layout.max_devices) >= devices[:, :, None]
        membership &= np.arange(layout.max_devices) < last[:, :, None]
        more["row_shares"] = kind["row_share"][shards].astype(np.float32)
    return more | {
        "tables": shard["features"][shards].reshape(len(shards), -1),
        "positions": (shard["position"][shards] + 1).astype(np.int32),
        "width_shares": shard["width_share"][shards].astype(np.float32),
        "waiting": ((devices < 0) & (shards > 0)).astype(np.int8),
        "membership": membership.reshape(len(shards), -1).astype(np.int8),
    }
