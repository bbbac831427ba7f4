"""The environment with all of TorchRec's sharding types, and its native vector form."""

from typing import Any

from shardgym.costs.base import CostModel
from shardgym.envs.env import PlacementEnv
from shardgym.envs.shard_catalog import SplitLimits
from shardgym.envs.vector_env import PlacementVectorEnv
from shardgym.errors import check_int


class AnyWiseEnv(PlacementEnv):
    """Place shards, halve them by columns, cut them by rows, or replicate tables; `ShardGym/AnyWise-v0`.

    The actions make all of TorchRec's sharding types, and TorchRec can run every complete plan on as many devices.

    **State.** A queue of shards, as in `ColumnWiseEnv`. A shard is some columns of one table, with one holder or
    several: all rows on one device; or its rows cut evenly over the devices of a fast domain, or over all devices. The
    agent decides about the shard at the head of the queue.

    **Action.** `action_space` is `Discrete(max_devices + 3)`. D is `max_devices`.

    - 0 to D - 1: place the shard. For a shard with several holders, the action is the first holder: the first device of
      a domain, or 0 for all devices. The n holders get ceil(rows / n) rows each, in their order, and the last one the
      rest.
    - D: halve the shard by columns, as in `ColumnWiseEnv`; halves have as many holders as the shard had.
    - D + 1: cut the shard by rows. It stays at the head, and its holders become the devices of a fast domain, if there
      are several domains of one size. A second cut makes all devices its holders, as the first does of an unpooled
      table.
    - D + 2: replicate the table: all devices get all of it, at once.

    These are TorchRec's only ways to cut rows. There is no halving by rows, because halves would have to be halved
    again until each device has a piece, and be placed in order. The actions make TorchRec's types as follows:

    - table_wise: a device. column_wise, table_column_wise: halve, and a device for each shard.
    - row_wise: cut by rows until all devices are holders, 0. table_row_wise: cut by rows once, a domain's first device.
    - grid_shard: halve, cut each shard by rows, a domain for each. data_parallel: replicate.

    **Valid actions.** A shard can be placed where all of its holders have room. It can be halved by the rules of
    `ColumnWiseEnv`. It can be cut by rows if each holder gets rows, if its holders have room somewhere, and if its
    table is not mean-pooled, because TorchRec divides those by the wrong bag sizes. All shards of a table have
    equally many holders: the first one that is cut by rows or placed on one device decides. Each shard of a table with
    cut rows needs a domain of its own, so the table has at most as many shards as there are domains. An uncut table can
    be replicated if each of several devices has room, and if the cost prices replicas: "roofline", "gpu",
    "torchrec_rating" and "fbgemm" do if fast domains are of one size, "simulator" does not.

    **Episode.** `reset` draws a task, as in `TableWiseEnv`. Each table takes one step to three, and each halving two to
    four more, so there are at most `3 * tables + 4 * max_splits` steps.

    **Observation.** That of `ColumnWiseEnv` with these differences. For a shard with several holders, `table` (and
    `tables`, if full) describe the part of one holder: a table of fewer rows with its share of the ids if rows are cut,
    or a table of all rows with a device's share of the samples if it is replicated. So do loads of `devices`, which add
    up to the shard's over its holders, except for bytes of replicas; each holder counts one shard.

    - `kind`, float32 (2,), is added: rows that a holder gets over those of the table; holders over devices of the task
      (0 when none is left).
    - `action_mask` is int8 (D + 3,).
    - `times`, if timed, include the device's own part of a shard with several holders.
    - `row_shares`, float32 (N,), are added if full: rows of a holder over those of the table. `membership` has a 1 for
      each holder.

    **Reward, End.** As in `ColumnWiseEnv`. Cutting earns 0, replicating as much as placing. "no_device_fits" means that
    no action is valid.

    **Info.** That of `ColumnWiseEnv`, and for the shard to place `rows`, the rows of a holder, and `holders`, their
    number (0 if none).

    **Copies, Rendering.** As in `TableWiseEnv`. A device's number of shards includes those that it has a part of.

    Args:
        suite: see `TableWiseEnv`.
        cost: see `TableWiseEnv`.
        max_splits: maximum number of halvings by columns in an episode. Cuts by rows and replicas add no shards, and
            have no limit.
        others: keyword arguments of `TableWiseEnv`, with the same errors.

    Example:
        >>> env = gymnasium.make("ShardGym/AnyWise-v0", suite="quick-v2", reward="dense")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, ended, _, info = env.step(env.action_space.n - 2)
        >>> info["holders"] == env.get_wrapper_attr("task").num_devices, reward
        (True, 0.0)
    """

    def __init__(
        self, suite: str | None = None, cost: str | CostModel = "roofline", *, max_splits: int = 10, **others: Any
    ) -> None:
        self._limits = SplitLimits(check_int("max_splits", max_splits), every_kind=True)
        super().__init__(suite, cost, **others)


class AnyWiseVectorEnv(PlacementVectorEnv):
    """N `AnyWiseEnv` as arrays, made by `make_vec("ShardGym/AnyWise-v0", num_envs=N)`."""

    single_env = AnyWiseEnv
