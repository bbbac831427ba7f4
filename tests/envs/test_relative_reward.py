"""RelativeReward: rewards over what a simple rule makes of the task."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from env_toys import halvable_task, make_tasks, masked_rollout, returns
from gymnasium.envs.registration import EnvSpec
from vector_play import some_actions

import shardgym
from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS
from shardgym.envs.reference import references_ms
from shardgym.envs.wrappers import RelativeReward, VectorRelativeReward
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


@pytest.mark.parametrize("reward", ["terminal", "dense"])
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_rewards_are_those_of_the_environment_over_the_reference(env_id, reward):
    plain, wrapped = (gymnasium.make(env_id, tasks=make_tasks(), reward=reward) for _ in range(2))
    wrapped = RelativeReward(wrapped)
    reference = None
    ratios = []
    for (_, ms, *_), (_, relative, *_, info) in zip(masked_rollout(plain, 0), masked_rollout(wrapped, 0), strict=True):
        reference = info.get("reference_ms", reference)
        assert relative == pytest.approx(ms / reference)
        assert relative <= 0 or reward == "dense"
        assert ("ratio" in info) == ("outcome" in info)
        if "ratio" in info:
            ratios.append(info["ratio"])
            assert info["ratio"] == info["cost_ms"] / info["reference_ms"]
    assert np.isfinite(ratios).any()


def test_the_reference_is_the_longest_first_with_room_for_everything():
    """Alone, t2 takes longest, then t1: t0 joins the shorter one of these two, though its memory is full."""
    task = halvable_task([8, 16, 8], devices=2, memory_bytes=4096)
    _, info = RelativeReward(gymnasium.make("ShardGym/TableWise-v0", tasks=[task])).reset(seed=0)
    roomy = halvable_task([8, 16, 8], devices=2)
    [cost] = RooflineCost().evaluate(roomy, [ShardingPlan.table_wise(roomy, [1, 1, 0])])
    assert info["reference_ms"] == pytest.approx(cost.total_ms)


@pytest.mark.parametrize("name", ["roofline", "simulator"])
def test_the_reference_is_that_of_lpt_where_memory_is_no_limit(name):
    """`lpt` also breaks ties by bytes, and joins halves that meet on a device."""
    cost, lpt = shardgym.make_cost(name), shardgym.make_solver("lpt")
    tasks = [dataclasses.replace(task, topology=task.topology.roomy()) for task in shardgym.load_suite("quick-v1")[:12]]
    costs = cost.additive()
    costs.share_shards()
    found = references_ms(cost, costs, tasks)
    theirs = np.array([cost.evaluate(task, [lpt.solve(task, cost)])[0].total_ms for task in tasks])
    assert (np.abs(found / theirs - 1) < 1e-6).sum() >= 8
    np.testing.assert_allclose(found, theirs, rtol=0.1)
    # One by one or together makes no difference.
    np.testing.assert_allclose(found, [references_ms(cost, costs, [task])[0] for task in tasks], rtol=1e-9)


def test_a_cost_of_whole_plans_is_asked_for_the_plan_of_the_rule():
    long = halvable_task([64, 8, 8], devices=2)
    cost = RooflineCost()
    asked = []
    cost.evaluate = lambda task, plans: asked.append((task, plans)) or RooflineCost().evaluate(task, plans)
    [found] = references_ms(cost, None, [long])
    [(task, plans)] = asked
    whole, cut = ([(s.table, s.columns, s.devices[0]) for s in plan.shards] for plan in plans)
    assert whole == [("t0", (0, 64), 0), ("t1", (0, 8), 1), ("t2", (0, 8), 1)]
    assert {columns for table, columns, _ in cut if table == "t0"} == {(0, 32), (32, 64)}
    assert found == min(answer.total_ms for answer in RooflineCost().evaluate(task, plans))


def test_a_task_is_priced_once(monkeypatch):
    """However often it is played, also after others were forgotten."""
    asked = []

    def priced(cost, costs, tasks):
        asked.extend(task.digest for task in tasks)
        return references_ms(cost, costs, tasks)

    monkeypatch.setattr("shardgym.envs.scoring.references_ms", priced)
    tasks = make_tasks()
    envs = VectorRelativeReward(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=4, tasks=tasks))
    observations, _ = envs.reset(seed=0)
    for _ in range(60):
        observations, *_ = envs.step(observations["action_mask"].argmax(axis=1))
    assert sorted(asked) == sorted({task.digest for task in tasks})


def test_a_task_without_times_is_an_input_error():
    odd = ShardingTask((EmbeddingTable("odd", 10, 6),), Topology(num_devices=1, memory_bytes=2**20), batch_size=64)
    with pytest.raises(InputError, match=r"no reference cost: table 'odd' has 6 columns, .*widths divisible by 4"):
        RelativeReward(gymnasium.make("ShardGym/TableWise-v0", tasks=[odd])).reset()


@pytest.mark.parametrize("reward", ["terminal", "dense"])
def test_a_relative_penalty_is_in_reference_costs(reward):
    """It also bounds what complete plans earn, and goes with the task of each environment."""
    settings = {"tasks": make_tasks(), "reward": reward, "relative_penalty": -1.5}
    ended = set()
    single = RelativeReward(gymnasium.make("ShardGym/TableWise-v0", **settings))
    for seed in range(3):
        for earned, outcome in returns(single, seed, 60):
            assert earned == pytest.approx(-1.5) or (outcome == "complete" and -1.5 < earned < 0)
            ended.add(outcome)
    assert ended == {"complete", "no_device_fits"}
    envs = VectorRelativeReward(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=3, **settings))
    envs.reset(options={"task_index": [0, 1, 2]})
    _, rewards, terminated, _, _ = envs.step([9, 9, 9])
    assert terminated.all()
    np.testing.assert_allclose(rewards, -1.5)


@pytest.mark.parametrize("penalty", [0, 2.0, "x", float("-inf")])
def test_a_relative_penalty_is_negative(penalty):
    with pytest.raises(InputError, match=r"relative_penalty .* is not a negative number"):
        gymnasium.make("ShardGym/TableWise-v0", relative_penalty=penalty)


def test_only_environments_of_the_package_can_be_wrapped():
    with pytest.raises(InputError, match="RelativeReward is for ShardGym's environments, got CartPoleEnv"):
        RelativeReward(gymnasium.make("CartPole-v1"))
    with pytest.raises(InputError, match="RelativeReward is for ShardGym's environments, got int 3"):
        RelativeReward(3)


def test_masks_and_spec_go_through_the_wrapper():
    env = RelativeReward(gymnasium.make("ShardGym/TableWise-v0", suite="quick-v1"))
    env.reset(seed=0)
    assert env.get_wrapper_attr("action_masks")().any()
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, RelativeReward)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_many_environments_earn_what_single_ones_earn(mode):
    """Row by row, as the wrapper of single environments in Gymnasium's vector environment."""
    settings = {"num_envs": 3, "tasks": make_tasks(), "reward": "dense"}
    options = {"vectorization_mode": "sync", "wrappers": [RelativeReward]}
    envs = [
        VectorRelativeReward(gymnasium.make_vec("ShardGym/TableWise-v0", autoreset_mode=mode, **settings)),
        gymnasium.make_vec("ShardGym/TableWise-v0", vector_kwargs={"autoreset_mode": mode}, **options, **settings),
    ]
    rng = np.random.default_rng(4)
    observations, infos = zip(*(env.reset(seed=1) for env in envs), strict=True)
    for _ in range(40):
        ends = [info.get("final_info", {}) if mode == "SameStep" else info for info in infos]
        for name, entries in (("reference_ms", infos), ("reference_ms", ends), ("ratio", ends)):
            assert np.array_equal(*(info.get(f"_{name}", np.zeros(3, bool)) for info in entries))
            np.testing.assert_allclose(*(info.get(name, np.zeros(3)) for info in entries), rtol=1e-12)
        actions = some_actions(rng, observations[0]["action_mask"], illegal=0)
        observations, rewards, terminated, _, infos = zip(*(env.step(actions) for env in envs), strict=True)
        np.testing.assert_allclose(*rewards, rtol=1e-9)
        if mode == "Disabled" and terminated[0].any():
            again = {"reset_mask": terminated[0]}
            observations, infos = zip(*(env.reset(options=dict(again)) for env in envs), strict=True)


def test_only_native_vector_environments_can_be_wrapped():
    with pytest.raises(InputError, match="VectorRelativeReward is for native vector environments, got SyncVectorEnv"):
        VectorRelativeReward(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=2, vectorization_mode="sync"))
    with pytest.raises(InputError, match="is for native vector environments, got int 3"):
        VectorRelativeReward(3)
