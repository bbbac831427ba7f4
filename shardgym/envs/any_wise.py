"""The environment of all kinds of sharding that TorchRec runs, and its native vector form."""

from typing import Any

from shardgym.costs.base import CostModel
from shardgym.envs.env import PlacementEnv
from shardgym.envs.shard_catalog import SplitLimits
from shardgym.envs.vector_env import PlacementVectorEnv
from shardgym.errors import check_int


class AnyWiseEnv(PlacementEnv):
    """Place shards, halve them by columns, cut them by rows, or replicate tables; `ShardGym/AnyWise-v0`.

    All of TorchRec's sharding types can be played, and every complete plan can be run by TorchRec on as many devices.

    **State.** A queue of shards, as in `ColumnWiseEnv`. A shard is some columns of one table, with one holder or
    several: all rows on one device; or its rows cut evenly over the devices of a fast domain, or over all devices. The
    agent decides about the shard at the head of the queue.

    **Action.** `action_space` is `Discrete(max_devices + 3)`. D is `max_devices`.

    - 0 to D - 1: places the shard. One with several holders is placed by the number of the first: that of a domain's
      first device, or 0 for all devices. The n holders get ceil(rows / n) rows each, in their order, the last one what
      is left.
    - D: halve the shard by columns, as in `ColumnWiseEnv`; halves have as many holders as the shard had.
    - D + 1: cut the shard by rows. It stays at the head, and its holders become the devices of a fast domain, if there
      are several domains of one size; once more, all devices.
    - D + 2: replicate the table: all devices get all of it, at once.

    TorchRec cuts rows only in these ways. So there is no halving by rows: halves would have to be halved on until each
    device has a piece, and be put on the devices in order. How the actions make TorchRec's types:

    - table_wise: a device. column_wise, table_column_wise: halve, and a device for each shard.
    - row_wise: cut by rows until all devices are holders, 0. table_row_wise: cut by rows once, a domain's first device.
    - grid_shard: halve, cut each shard by rows, a domain for each. data_parallel: replicate.

    **Which are valid.** A shard can be placed where all of its holders have room. It can be halved if `ColumnWiseEnv`
    lets it be. It can be cut by rows if that leaves rows for each holder, if its holders have room somewhere, and if
    its table is sum-pooled, as TorchRec divides mean-pooled ones by the wrong bag sizes. All shards of a table have as
    many holders: the first one that is cut by rows, or that is put on one device, decides. Each shard of a table whose
    rows are cut needs a domain of its own, so it takes no more halvings than there are domains. A table that is not cut
    can be replicated if each of several devices has room, and if the cost prices replicas: "roofline", "gpu",
    "torchrec_rating" and "fbgemm" do where fast domains are of one size, "simulator" does not.

    **Episode.** `reset` draws a task, as in `TableWiseEnv`. Each table takes one step to three, and each halving two to
    four more, so there are at most `3 * tables + 4 * max_splits` steps.

    **Observation.** That of `ColumnWiseEnv` with these differences. Of a shard with several holders, `table` (and
    `tables`, if full) describe what a holder gets: of a cut by rows a table of fewer rows, with its share of the ids;
    of a replica a table of all rows, and a device's share of the samples. Loads of `devices` likewise, so that those of
    all holders add up to the shard's, bytes of replicas apart; a holder counts the shard as one.

    - `kind`, float32 (2,), is added: rows that a holder gets over those of the table; holders over devices of the task
      (0 when none is left).
    - `action_mask` is int8 (D + 3,).
    - `times`, if timed, have the device's own part added where the shard has several holders.
    - `row_shares`, float32 (N,), are added if full: rows that a holder has over those of the table. `membership` has a
      1 for each holder.

    **Reward, End.** As in `ColumnWiseEnv`. Cutting earns 0, replicating what placing does. "no_device_fits" means that
    no action is valid any more.

    **Info.** That of `ColumnWiseEnv`, and `rows`, those of the shard to place that a holder gets, and `holders`, their
    number (0 if none).

    **Copies, Rendering.** As in `TableWiseEnv`. A device's number of shards counts those that it holds a part of.

    Args:
        suite: as in `TableWiseEnv`.
        cost: likewise.
        max_splits: halvings by columns in an episode at most. Cuts by rows and replicas make no more shards to place,
            so they have no limit.
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
    """`AnyWiseEnv` many times, as arrays; what `make_vec("ShardGym/AnyWise-v0", num_envs=N)` makes."""

    single_env = AnyWiseEnv
