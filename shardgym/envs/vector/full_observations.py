"""What full observations add, for N placements; see `full_entries` for single ones."""

from __future__ import annotations

import numpy as np

from shardgym.envs.observation_space import Layout, Observation
from shardgym.envs.vector.placements import Placements
from shardgym.envs.vector.shard_kinds import NOTHING


def full_observations(layout: Layout, placements: Placements) -> Observation:
    """Return the entries of full observations that compact ones lack.

    Args:
        layout: of the observation space.
        placements: what to show.
    """
    p, rows = placements, np.arange(layout.max_shards)
    placed, shards = p.placed[:, None], p.count[:, None]
    is_placed, is_waiting = rows < placed, (rows >= placed) & (rows < shards)
    last = p.done.shape[1] - 1
    done = np.take_along_axis(p.done, np.minimum(np.broadcast_to(rows, is_placed.shape), last), 1)
    # The queue's next shard is its last one.
    queue = np.take_along_axis(p.queue.kinds, np.clip(shards - 1 - rows, 0, last), 1)
    seen = np.where(is_placed, done, np.where(is_waiting, queue, NOTHING))
    env, row = np.nonzero(is_placed)
    membership = np.zeros((*seen.shape, layout.max_devices), np.int8)
    membership[env, row, p.done_device[env, row]] = 1
    kinds = p.shards.kinds
    return {
        "tables": kinds["features"][seen].reshape(len(seen), -1),
        "positions": (kinds["position"][seen] + 1).astype(np.int32),
        "width_shares": kinds["width_share"][seen].astype(np.float32),
        "waiting": is_waiting.astype(np.int8),
        "membership": membership.reshape(len(seen), -1),
    }
