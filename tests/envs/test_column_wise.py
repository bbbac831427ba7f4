"""ColumnWiseEnv: halving, its limits and masks, and what masked play can reach."""

import itertools

import pytest
from env_toys import halvable_task, make_tasks, masked_rollout, plans_reached, play, tried_actions

from shardgym.costs.roofline import RooflineCost
from shardgym.envs.env import ColumnWiseEnv
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

#: Action that halves, with two devices.
CUT = 2


def heads(env, actions):
    """Table and width of the shard to place, at first and after every action."""
    _, info = env.reset()
    seen = [(info["table"], info["width"])]
    for action in actions:
        info = env.step(action)[4]
        seen.append((info["table"], info["width"]))
    return seen


def test_a_plan_of_halves_is_scored_whole():
    task = halvable_task([16, 8])
    env = ColumnWiseEnv(tasks=[task])
    # t0 is halved, its left half goes to 0; then its right half and t1 tie, and halves go first.
    *_, (observation, reward, terminated, truncated, info) = play(env, [CUT, 0, 1, 0])
    plan = ShardingPlan.of(
        task, [Shard("t0", (0, 64), (0, 8), 0), Shard("t0", (0, 64), (8, 16), 1), Shard("t1", (0, 64), (0, 8), 0)]
    )
    [cost] = RooflineCost().evaluate(task, [plan])
    assert (terminated, truncated, reward) == (True, False, -cost.total_ms)
    assert info == {
        "task_index": 0, "task_hash": task.digest, "task": "", "table": "", "placed": 3, "width": 0, "splits": 1,
        "outcome": "complete", "plan": plan, "cost": cost, "is_success": 1.0,
        "cost_ms": cost.total_ms,
    }  # fmt: skip
    assert not observation["action_mask"].any()
    assert observation["splits"].tolist() == [pytest.approx(0.9), 0]


def test_halves_come_up_where_the_order_has_them():
    # Sizes 64, 24, 16: the halves of t0 are larger than t1, quarters come between t1 and t2 or tie with t2.
    env = ColumnWiseEnv(tasks=[halvable_task([64, 24, 16])])
    whole = [("t0", 64), ("t0", 32), ("t0", 32), ("t1", 24)]
    assert heads(env, [CUT, 0, 0]) == whole
    # Both halves are halved: the quarters tie with t2 and come before it, those of the second half first.
    assert heads(env, [CUT, CUT, CUT, 0, 0, 0, 0, 0]) == [
        ("t0", 64), ("t0", 32), ("t0", 32), ("t1", 24), ("t0", 16), ("t0", 16), ("t0", 16), ("t0", 16), ("t2", 16)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("widths", "limits", "actions", "shard"),
    [
        ([12], {}, [], "table 't0'"),
        ([8], {}, [CUT], "columns 0 to 3 of table 't0'"),
        ([64], {"max_splits": 0}, [], "table 't0'"),
        ([64, 8], {"max_splits": 1}, [CUT], "columns 0 to 31 of table 't0'"),
    ],
)
def test_what_cannot_be_halved_is_masked_and_ends_the_episode(widths, limits, actions, shard):
    env = ColumnWiseEnv(tasks=[halvable_task(widths)], **limits)
    play(env, actions)
    assert env.action_masks().tolist() == [True, True, False]
    observation, reward, terminated, _, info = env.step(CUT)
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "invalid_action")
    assert info["reason"] == f"action 2 is not valid for {shard}: see the action mask"
    assert not observation["action_mask"].any()


def test_a_table_that_fits_nowhere_can_be_halved_until_it_does():
    # 16 columns of 64 rows are 4,096 bytes; a device has room for half of that.
    task = halvable_task([16], memory_bytes=2048)
    env = ColumnWiseEnv(tasks=[task])
    observation, info = env.reset()
    assert "reason" not in info
    assert observation["action_mask"].tolist() == [0, 0, 1]
    observation, reward, terminated, _, _ = env.step(CUT)
    assert (reward, terminated, observation["action_mask"].tolist()) == (0.0, False, [1, 1, 1])
    env.step(0)
    assert env.action_masks().tolist() == [False, True, True]
    assert env.step(1)[4]["outcome"] == "complete"


def test_an_episode_ends_when_nothing_fits_and_nothing_can_be_halved():
    task = halvable_task([16], memory_bytes=1024)
    env = ColumnWiseEnv(tasks=[task], max_splits=1)
    *_, (_, reward, terminated, _, info) = play(env, [CUT])
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_device_fits")
    assert info["reason"] == (
        "columns 0 to 7 of table 't0' of 2048 bytes fits on no device: the largest room left is 1024 bytes on "
        "device 0, and it can be cut no further"
    )


def test_optimiser_state_per_row_is_held_by_both_halves():
    """Row-wise AdaGrad keeps 4 bytes per row of every shard: 64 x (16 x 4 + 4) bytes whole, 64 x (8 x 4 + 4) a half."""
    task = halvable_task([16], memory_bytes=64 * 68, devices=1, optimizer="rowwise_adagrad")
    assert play(ColumnWiseEnv(tasks=[task]), [0])[-1][4]["outcome"] == "complete"
    *_, (_, _, _, _, info) = play(ColumnWiseEnv(tasks=[task], max_splits=1), [1, 0])
    assert info["outcome"] == "no_device_fits"
    assert "of 2304 bytes fits on no device: the largest room left is 2048 bytes" in info["reason"]


def test_masks_agree_with_trying_every_action():
    env, compared = ColumnWiseEnv(tasks=make_tasks(), max_splits=2), 0
    for _, _, terminated, _, info in masked_rollout(env, seed=1, steps=80):
        if not terminated and "reason" not in info:
            assert env.action_masks().tolist() == tried_actions(env)
            compared += 1
    assert compared > 40


def test_what_masked_play_can_reach_is_every_feasible_plan_of_halves():
    # Units of 16 bytes x 4 columns: t0 is 8 x 8 (16 units), t1 is 4 x 4 (4 units).
    tables = (EmbeddingTable("t0", 8, 8), EmbeddingTable("t1", 4, 4))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=(256, 160)), batch_size=64)
    env = ColumnWiseEnv(tasks=[task])
    env.reset()
    reached = plans_reached(env)
    plans = []
    for other, left, right in itertools.product(range(2), repeat=3):
        halves = [Shard("t0", (0, 8), (0, 4), left), Shard("t0", (0, 8), (4, 8), right)]
        plans.append([*halves, Shard.whole(tables[1], other)])
        plans.append([Shard.whole(tables[0], left), Shard.whole(tables[1], other)])
    feasible = {
        plan.digest
        for plan in (ShardingPlan.of(task, shards) for shards in plans)
        if RooflineCost().evaluate(task, [plan])[0].feasible
    }
    assert reached == feasible
    assert 0 < len(feasible) < len({ShardingPlan.of(task, shards).digest for shards in plans})
