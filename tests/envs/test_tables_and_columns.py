"""TableWise and ColumnWise: episodes, halving, masks, and what masked play can reach, on tasks to enumerate."""

import itertools

import numpy as np
import pytest
from env_toys import Unmeasured, halvable_task, plans_reached, play

from shardgym import EmbeddingTable, InputError, MeasurementError, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.costs.roofline import RooflineCost
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv


def make_task(units, memory_units, name="", **options):
    """Tables of 16 bytes times `units`, devices of 16 bytes times `memory_units`."""
    tables = tuple(EmbeddingTable(f"t{i}", size, 4, 1.0 + i) for i, size in enumerate(units))
    topology = Topology(num_devices=len(memory_units), memory_bytes=tuple(16 * units for units in memory_units))
    return ShardingTask(tables, topology, batch_size=64, name=name, **options)


#: Action of ColumnWise that halves, with two devices.
CUT = 2

#: Largest first: t2 (3 units), t0 (2), t1 (1), t3 (1).
TIGHT = make_task([2, 1, 3, 1], [4, 3], "tight")
ROOMY = make_task([5, 4, 3, 2, 1], [100, 100, 100], "roomy")


class Raising(RooflineCost):
    def score(self, task, plans):
        raise MeasurementError("no worker could be started")


def test_a_complete_episode_earns_minus_the_cost_of_its_plan():
    observation, reward, terminated, truncated, info = play(TableWiseEnv(tasks=[TIGHT]), [0, 1, 1, 0], seed=0)[-1]
    # Placing order t2, t0, t1, t3 on devices 0, 1, 1, 0.
    plan = ShardingPlan.table_wise(TIGHT, {"t2": 0, "t0": 1, "t1": 1, "t3": 0})
    [cost] = RooflineCost().evaluate(TIGHT, [plan])
    assert (terminated, truncated) == (True, False)
    assert info == {
        "task_index": 0, "task_hash": TIGHT.digest, "task": "tight", "table": "", "placed": 4, "outcome": "complete",
        "plan": plan, "cost": cost, "is_success": 1.0, "cost_ms": cost.total_ms,
    }  # fmt: skip
    assert reward == -cost.total_ms
    assert not observation["action_mask"].any()
    assert not observation["table"].any()


@pytest.mark.parametrize("action", [1, 2, -1, 2**62, np.uint8(7)])
def test_an_invalid_action_ends_the_episode_with_the_penalty(action):
    """No room on device 1; there is no device 2, nor any other."""
    env = TableWiseEnv(tasks=[make_task([4], [4, 3])], penalty=-7.0, max_devices=3)
    _, reward, terminated, truncated, info = play(env, [action])[-1]
    assert (reward, terminated, truncated, info["outcome"]) == (-7.0, True, False, "invalid_action")
    assert info["reason"] == f"action {action} is not valid for table 't0': see the action mask"
    assert "plan" not in info
    assert "cost" not in info


@pytest.mark.parametrize("action", [np.array([0]), [0], 0.0, np.array(1.5), True, None, "0", 2**70])
def test_an_action_of_another_shape_or_type_is_an_error_and_no_step(action):
    env = TableWiseEnv(tasks=[TIGHT])
    env.reset()
    with pytest.raises(InputError, match=r"actions: expected whole numbers of shape \(\), got "):
        env.step(action)
    assert env.step(np.array(0))[4]["placed"] == 1


def test_a_table_that_fits_nowhere_ends_the_episode_when_it_comes_up():
    # 3 units -> 0 (4), then 2 units -> 0 would not fit: -> 1 (3); 2 more units fit nowhere (rooms 1 and 1).
    _, reward, terminated, _, info = play(TableWiseEnv(tasks=[make_task([3, 2, 2], [4, 3])]), [0, 1])[-1]
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_device_fits")
    assert info["reason"] == "table 't2' of 32 bytes fits on no device: the largest room left is 16 bytes on device 0"


def test_a_first_table_that_fits_nowhere_is_said_at_reset_and_ends_the_first_step():
    env = TableWiseEnv(tasks=[make_task([5], [4, 3])], max_devices=3)
    observation, info = env.reset(seed=0)
    assert "'t0' of 80 bytes fits on no device" in info["reason"]
    assert observation["action_mask"].tolist() == [1, 1, 0]
    _, reward, terminated, _, info = env.step(0)
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_device_fits")


@pytest.mark.parametrize(("cost", "reason"), [(Unmeasured(), "worker died"), (Raising(), "no worker could be started")])
def test_a_failed_measurement_earns_the_penalty_and_keeps_the_plan(cost, reason):
    _, reward, terminated, _, info = play(TableWiseEnv(tasks=[TIGHT], cost=cost), [0, 1, 1, 0])[-1]
    assert (reward, terminated, info["outcome"], info["reason"]) == (-1000.0, True, "no_cost", reason)
    assert not info["cost"].feasible
    info["plan"].validate(TIGHT)


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


def test_an_episode_ends_when_nothing_fits_and_nothing_can_be_halved():
    task = halvable_task([16], memory_bytes=1024)
    env = ColumnWiseEnv(tasks=[task], max_splits=1)
    *_, (_, reward, terminated, _, info) = play(env, [CUT])
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_device_fits")
    assert info["reason"] == (
        "columns 0 to 7 of table 't0' of 2048 bytes fits on no device: the largest room left is 1024 bytes on "
        "device 0, and it can be cut no further"
    )


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
