"""What full observations add: every shard, and where it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shardgym.envs.observation_space import TABLE_FEATURES, Layout, Observation
from shardgym.envs.placement import Placement
from shardgym.envs.shards import WaitingShard


def full_entries(
    layout: Layout, placement: Placement, features_of: Callable[[WaitingShard], npt.NDArray[np.float32]]
) -> Observation:
    """Return the entries of a full observation that a compact one lacks.

    Rows are the placed shards in the order of placing, then those that wait, the next one first, then zeros.

    Args:
        layout: of the observation space.
        placement: what to show.
        features_of: gives the features of a shard.
    """
    waiting = placement.waiting[::-1]
    shards = [shard for shard, _ in placement.done] + waiting
    rows, placed, count = layout.max_shards, placement.placed, len(shards)
    dims = placement.figures.dims
    tables = np.zeros((rows, len(TABLE_FEATURES)), np.float32)
    tables[:count] = [features_of(shard) for shard in shards]
    positions, width_shares = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    positions[:count] = [shard.position + 1 for shard in shards]
    width_shares[:count] = [shard.width / dims[shard.table] for shard in shards]
    is_waiting, membership = np.zeros(rows, np.int8), np.zeros((rows, layout.max_devices), np.int8)
    is_waiting[placed:count] = 1
    membership[range(placed), [device for _, device in placement.done]] = 1
    return {
        "tables": tables.ravel(), "positions": positions, "width_shares": width_shares, "waiting": is_waiting,
        "membership": membership.ravel(),
    }  # fmt: skip
