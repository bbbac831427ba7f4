"""ColumnWiseEnv: place tables on devices, cutting them by columns on the way."""

from __future__ import annotations

from typing import Any

from shardgym.costs.base import CostModel
from shardgym.envs.base import PlacementEnv
from shardgym.envs.shards import SplitLimits


class ColumnWiseEnv(PlacementEnv):
    """Place shards on devices or halve them by columns; registered as `ShardGym/ColumnWise-v0`.

    **State.** A queue of shards, at first the task's tables, whole, in descending order of memory (see `order`), and
    for every device the shards that it holds. A shard is all rows of some columns of one table and counts as a table of
    that width: as many ids, fewer columns, bytes with the optimiser state of its own. The agent decides about the
    shard at the head of the queue.

    **Action.** `action_space` is `Discrete(max_devices + 1)`.

    - 0 to `max_devices - 1`: the device that gets the shard. Shards of one table may share a device.
    - `max_devices`: halve the shard. It leaves the queue and its two halves enter, left one first, where `order` has
      them: in front of the first waiting shard whose key is not larger than a half's. So the queue stays in order, and
      with order="task" the halves come up at once.

    A shard can be halved if its columns are divisible by 8 (four columns are the unit of a cut), fewer than
    `max_splits` shards were halved in the episode, and fewer than `max_table_splits` of its table.

    **Episode.** `reset` draws a task, as in `TableWiseEnv`. Each table takes one step and each halving two more, so
    there are at most `tables + 2 * max_splits` steps.

    **Observation.** That of `TableWiseEnv` with these differences. D is `max_devices`, N is `max_tables + max_splits`.

    - `table` (and `tables`, if full) are about shards, and `progress` and every share of tables count shards: relative
      to the shards that there are now, placed or waiting. Shares of bytes, columns and columns times pooling factor
      are relative to the task's uncut tables, at most 1.
    - `splits`, float32 (2,), is added: halvings left over `max_splits` (0 if that is 0); columns of the shard to
      place over those of its whole table (0 when none is left).
    - `action_mask` is int8 (D + 1,); its last entry says whether the shard can be halved.

    **Reward, End.** As in `TableWiseEnv`. Halving earns 0. "invalid_action" also covers halving what cannot be halved.
    "no_device_fits" means that no device has room for the shard and it cannot be halved either; where this is so for
    the first table, the mask opens for the task's devices, not for halving.

    **Info.** That of `TableWiseEnv`, where `table` names the table that the shard is of and `placed` counts shards;
    and `width`, columns of the shard to place (0 if none), and `splits`, halvings so far.

    **Forks, Rendering.** As in `TableWiseEnv`.

    Args:
        suite: name of a suite; "quick-v1" when neither `suite` nor `tasks` is given.
        cost: name of a cost model, or the model itself (which is then not closed with the environment).
        max_splits: halvings in an episode at most; by default the published depth of NeuroShard's search over splits.
        max_table_splits: halvings of the shards of one table at most; None for no limit of its own.
        others: keyword arguments of `TableWiseEnv`.

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such suite, pool, cost, order, observation or reward; the closest names are given.

    Example:
        >>> env = gymnasium.make("ShardGym/ColumnWise-v0", suite="quick-v1", max_splits=4, reward="dense")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, ended, _, info = env.step(env.action_space.n - 1)
        >>> info["splits"], reward
        (1, 0.0)
    """

    def __init__(
        self,
        suite: str | None = None,
        cost: str | CostModel = "roofline",
        *,
        max_splits: int = 10,
        max_table_splits: int | None = None,
        **others: Any,
    ) -> None:
        self._limits = SplitLimits(max_splits, max_table_splits)
        super().__init__(suite, cost, **others)
