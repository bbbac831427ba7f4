"""TableWiseEnv: episodes on tasks small enough to enumerate."""

import itertools

import gymnasium
import numpy as np
import pytest
from env_toys import plans_reached, tried_actions

from shardgym.costs.roofline import RooflineCost
from shardgym.envs.env import TableWiseEnv
from shardgym.errors import InputError, MeasurementError
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


def make_task(units, memory_units, name="", **options):
    """Tables of 16 bytes times `units`, devices of 16 bytes times `memory_units`."""
    tables = tuple(EmbeddingTable(f"t{i}", size, 4, 1.0 + i) for i, size in enumerate(units))
    topology = Topology(num_devices=len(memory_units), memory_bytes=tuple(16 * units for units in memory_units))
    return ShardingTask(tables, topology, batch_size=64, name=name, **options)


#: Largest first: t2 (3 units), t0 (2), t1 (1), t3 (1).
TIGHT = make_task([2, 1, 3, 1], [4, 3], "tight")
ROOMY = make_task([5, 4, 3, 2, 1], [100, 100, 100], "roomy")


def play(env, actions, **reset):
    """Return (observation, reward, terminated, truncated, info) of the last step."""
    env.reset(**reset)
    for action in actions:
        result = env.step(action)
    return result


class Failing(RooflineCost):
    """Cannot measure anything."""

    def score(self, task, plans):
        return [self.no_cost(task, "worker died") for _ in plans]


class Raising(RooflineCost):
    def score(self, task, plans):
        raise MeasurementError("no worker could be started")


class Closing(RooflineCost):
    closed = 0

    def close(self):
        self.closed += 1


def test_a_complete_episode_earns_minus_the_cost_of_its_plan():
    observation, reward, terminated, truncated, info = play(TableWiseEnv(tasks=[TIGHT]), [0, 1, 1, 0], seed=0)
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


def test_steps_before_the_last_earn_nothing_and_name_the_next_table():
    env = TableWiseEnv(tasks=[TIGHT])
    _, info = env.reset(seed=0)
    names, rewards = [info["table"]], []
    for action in (0, 1, 1):
        _, reward, terminated, truncated, info = env.step(action)
        names.append(info["table"])
        rewards.append((reward, terminated, truncated))
    assert names == ["t2", "t0", "t1", "t3"]
    assert rewards == [(0.0, False, False)] * 3


@pytest.mark.parametrize(
    ("order", "names"),
    # Bytes 2, 1, 3, 1; lookups 4 x (1, 2, 3, 4).
    [("size", "t2 t0 t1 t3"), ("lookup", "t3 t2 t1 t0"), ("task", "t0 t1 t2 t3")],
)
def test_tables_come_up_in_the_order_asked_for(order, names):
    env = TableWiseEnv(tasks=[make_task([2, 1, 3, 1], [100, 100])], order=order)
    seen = [env.reset(seed=0)[1]["table"]]
    seen += [env.step(0)[4]["table"] for _ in range(3)]
    assert seen == names.split()


@pytest.mark.parametrize("action", [1, 2, -1, 2**62, np.uint8(7)])
def test_an_invalid_action_ends_the_episode_with_the_penalty(action):
    """No room on device 1; there is no device 2, nor any other."""
    env = TableWiseEnv(tasks=[make_task([4], [4, 3])], penalty=-7.0, max_devices=3)
    _, reward, terminated, truncated, info = play(env, [action])
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
    _, reward, terminated, _, info = play(TableWiseEnv(tasks=[make_task([3, 2, 2], [4, 3])]), [0, 1])
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_device_fits")
    assert info["reason"] == "table 't2' of 32 bytes fits on no device: the largest room left is 16 bytes on device 0"


def test_a_first_table_that_fits_nowhere_is_said_at_reset_and_ends_the_first_step():
    env = TableWiseEnv(tasks=[make_task([5], [4, 3])], max_devices=3)
    observation, info = env.reset(seed=0)
    assert "'t0' of 80 bytes fits on no device" in info["reason"]
    assert observation["action_mask"].tolist() == [1, 1, 0]
    _, reward, terminated, _, info = env.step(0)
    assert (reward, terminated, info["outcome"]) == (-1000.0, True, "no_device_fits")


@pytest.mark.parametrize(("cost", "reason"), [(Failing(), "worker died"), (Raising(), "no worker could be started")])
def test_a_failed_measurement_earns_the_penalty_and_keeps_the_plan(cost, reason):
    _, reward, terminated, _, info = play(TableWiseEnv(tasks=[TIGHT], cost=cost), [0, 1, 1, 0])
    assert (reward, terminated, info["outcome"], info["reason"]) == (-1000.0, True, "no_cost", reason)
    assert not info["cost"].feasible
    info["plan"].validate(TIGHT)


def test_a_plan_that_no_kernel_takes_earns_the_penalty():
    task = ShardingTask((EmbeddingTable("odd", 10, 6),), Topology(num_devices=1, memory_bytes=2**20), batch_size=64)
    _, reward, _, _, info = play(TableWiseEnv(tasks=[task]), [0])
    assert (reward, info["outcome"]) == (-1000.0, "no_cost")
    assert "widths divisible by 4" in info["reason"]


def test_no_plan_earns_less_than_giving_up():
    _, reward, _, _, info = play(TableWiseEnv(tasks=[ROOMY], penalty=-1e-6), [0] * 5)
    assert info["outcome"] == "complete"
    assert reward == -1e-6


def test_masks_agree_with_trying_every_action():
    env = TableWiseEnv(tasks=[TIGHT], max_devices=4)
    env.reset()
    for action, rooms in ((0, (4, 3)), (1, (1, 3)), (1, (1, 1)), (0, (1, 0))):
        size = {"t2": 3, "t0": 2}.get(env._info()["table"], 1)
        assert env.action_masks().tolist() == [*(room >= size for room in rooms), False, False] == tried_actions(env)
        env.step(action)


def test_what_masked_play_can_reach_is_every_feasible_plan():
    env = TableWiseEnv(tasks=[TIGHT])
    env.reset()
    plans = [ShardingPlan.table_wise(TIGHT, devices) for devices in itertools.product(range(2), repeat=4)]
    feasible = {plan.digest for plan in plans if RooflineCost().evaluate(TIGHT, [plan])[0].feasible}
    assert plans_reached(env) == feasible
    assert 0 < len(feasible) < 16


def test_cost_settings_reach_the_cost_model():
    env = TableWiseEnv(tasks=[ROOMY], cost="roofline", cost_settings={"hardware": "h100"})
    assert play(env, [0] * 5)[4]["cost"].hardware == "roofline-h100"


def test_stepping_without_an_episode_asks_for_a_reset():
    env = TableWiseEnv(tasks=[TIGHT])
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    play(env, [0, 1, 1, 0])
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_only_a_cost_model_made_here_is_closed():
    cost = Closing()
    TableWiseEnv(tasks=[TIGHT], cost=cost).close()
    assert cost.closed == 0
    env = TableWiseEnv(tasks=[TIGHT], cost=f"{__name__}:Closing")
    env.close()
    assert env._game.cost.closed == 1


def test_the_classes_are_found_by_name():
    import shardgym.envs

    assert shardgym.envs.TableWiseEnv.__name__ == "TableWiseEnv"
    assert shardgym.envs.ColumnWiseVectorEnv.__name__ == "ColumnWiseVectorEnv"
    assert not hasattr(shardgym.envs, "RowWiseEnv")
