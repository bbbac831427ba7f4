"""TableWiseEnv: place whole tables on devices, one after another."""

from __future__ import annotations

from shardgym.envs.base import PlacementEnv


class TableWiseEnv(PlacementEnv):
    """Place the tables of a task whole, one after another; registered as `ShardGym/TableWise-v0`.

    **Episode.** `reset` draws a task uniformly, or takes the one asked for with `options={"task_index": i}` or
    `options={"task": task}`. Tables come up in descending order of memory (see `order`). An episode has as many steps
    as the task has tables.

    **Action.** The number of the device that gets the table. `action_space` is `Discrete(max_devices)`, the largest
    number of devices in the suite.

    **Observation.** A dictionary of boxes of one dimension. All features are float32 in [0, 1]; "share" is relative to
    the whole task unless said otherwise. D is `max_devices`.

    - `table` (25,): the table to place (zeros when none is left). log2(rows) / 40; log2(columns) / 16;
      ln(1 + pooling factor) / ln(1 + 1e6); bytes over the largest device's memory, at most 1; shares of bytes, of
      columns, of columns times pooling factor; whether the reuse histogram is known; its 17 bins (zeros if not).
    - `devices` (7 D,): seven numbers for each device, `reshape(D, 7)` gives a row each. Whether the device exists (all
      zero if not); free share of its memory; its memory over the largest device's; then what it holds: shares of
      bytes, columns, columns times pooling factor, tables.
    - `progress` (1,): share of tables placed.
    - `remaining` (5,): shares of tables, bytes, columns, columns times pooling factor still to place; bytes to place
      over bytes free, at most 1.
    - `action_mask`, int8 (D,): 1 for devices that exist and have room for the table. All zero only after the end.

    With observation="full" these are added. N is `max_tables`; the rows are the placed tables in the order of placing,
    then those that wait, the one to place first, then zeros.

    - `tables` (25 N,): the features of every table, as in `table`.
    - `positions`, int32 (N,): 1 + position in `task.tables`.
    - `width_shares` (N,): columns over those of the whole table, which is 1.
    - `waiting`, int8 (N,): 1 for tables still to place.
    - `membership`, int8 (N D,): `reshape(N, D)` has a 1 where a table is on a device.

    The names of the features are in `shardgym.envs.observation_space`. `action_masks()` returns the mask as booleans.

    **Reward.** A complete plan earns minus its cost, `-info["cost"].total_ms`, but never less than `penalty`, so that
    giving up never pays. With reward="terminal" it is earned at the end and steps before earn 0. With reward="dense"
    every step earns minus what it added to the cost of what is placed, and the last one what is missing to the same
    sum, penalties included; so returns are equal to rounding. What is placed is scored as if the task had no other
    tables, by the simulator incrementally, by other cost models as a task of its own (so "fbgemm" measures every step).

    **End.** `terminated` is set, and `info["outcome"]` says how it came:

    - "complete": all tables are placed and the plan has a cost.
    - "invalid_action": the device does not exist or has no room. The episode earns `penalty`.
    - "no_device_fits": no device has room for the table that came up. The episode earns `penalty`. Where this is so for
      the first table, `reset` says so in `info["reason"]` and opens the mask for all devices of the task; the first
      step ends the episode whatever the action.
    - "no_cost": the plan is infeasible or could not be measured. The episode earns `penalty`. Dense rewards notice
      before the plan is complete.

    Episodes are never truncated.

    **Info.** Always: `task_index` (-1 for a task given by option), `task_hash`, `task` (its name), `table` (name of
    the table to place, "" if none), `placed`. At the end also `outcome`, and `reason`, one line, unless complete. A
    complete plan adds `plan` (`ShardingPlan`) and `cost` (`PlanCost`). Info is deterministic if the cost is.

    **Forks.** `env.unwrapped.snapshot()` returns a point of an episode and `restore(snapshot)` goes there, cheaply
    enough for tree search. Environments and snapshots can be pickled if the cost model can.

    **Rendering.** Devices with compute, communication and memory of what is placed, the slowest one marked. The times
    are the cost model's, so a measured cost is measured for every frame.

    Args:
        suite: name of a suite; "quick-v1" when neither `suite` nor `tasks` is given.
        cost: name of a cost model, or the model itself (which is then not closed with the environment).
        tasks: tasks of one's own instead of a suite.
        pool: name or path of a pool. Tasks are then drawn at random from its train half, sized like those of `suite`,
            so that a policy trained on them has seen no table of the suite's test half.
        cost_settings: keyword arguments for a cost model given by name.
        order: "size", "lookup" (columns times pooling factor), "dim" or "task"; descending, ties as the task lists
            them.
        observation: "compact" or "full".
        reward: "terminal" or "dense".
        penalty: what an episode earns that ends without a cost; negative and finite.
        max_devices: makes the spaces larger than the suite needs, to use a policy on other suites.
        max_tables: likewise, for full observations.
        render_mode: None, "ansi" or "rgb_array".

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such suite, pool, cost, order, observation or reward; the closest names are given.

    Example:
        >>> env = gymnasium.make("ShardGym/TableWise-v0", suite="quick-v1", cost="roofline")
        >>> observation, info = env.reset(seed=0)
        >>> ended = False
        >>> while not ended:
        ...     action = env.action_space.sample(mask=observation["action_mask"])
        ...     observation, reward, ended, _, info = env.step(action)
        >>> info["outcome"]
        'complete'
    """
