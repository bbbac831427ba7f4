"""RelativeReward: rewards over the even share of the task's work."""

import gymnasium
import numpy as np
import pytest
from env_toys import PLACEMENT_IDS, halvable_task, make_tasks, masked_rollout, returns
from gymnasium.envs.registration import EnvSpec
from vector_play import some_actions

from shardgym.costs.roofline import RooflineCost
from shardgym.envs.wrappers import RelativeReward, VectorRelativeReward
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.topology import Topology


@pytest.mark.parametrize("reward", ["terminal", "dense"])
@pytest.mark.parametrize("env_id", PLACEMENT_IDS)
def test_rewards_are_those_of_the_environment_over_the_even_share(env_id, reward):
    plain, wrapped = (gymnasium.make(env_id, tasks=make_tasks(), reward=reward) for _ in range(2))
    wrapped = RelativeReward(wrapped)
    share = None
    for (_, ms, *_), (_, relative, *_, info) in zip(masked_rollout(plain, 0), masked_rollout(wrapped, 0), strict=True):
        share = info.get("even_share_ms", share)
        assert relative == pytest.approx(ms / share)
        assert relative <= 0 or reward == "dense"


def test_the_even_share_is_the_time_of_one_device_with_everything_over_the_devices():
    task = halvable_task([16, 8], devices=2, memory_bytes=4096)
    _, info = RelativeReward(gymnasium.make("ShardGym/TableWise-v0", tasks=[task])).reset(seed=0)
    roomy = halvable_task([16, 8], devices=2)
    [cost] = RooflineCost().evaluate(roomy, [ShardingPlan.table_wise(roomy, [0, 0])])
    assert info["even_share_ms"] == pytest.approx(cost.total_ms / 2)
    # That plan itself does not fit into this task's memory.
    assert not RooflineCost().evaluate(task, [ShardingPlan.table_wise(task, [0, 0])])[0].feasible


def test_a_task_without_times_is_an_input_error():
    odd = ShardingTask((EmbeddingTable("odd", 10, 6),), Topology(num_devices=1, memory_bytes=2**20), batch_size=64)
    with pytest.raises(InputError, match=r"no time of all tables on one device: .*widths divisible by 4"):
        RelativeReward(gymnasium.make("ShardGym/TableWise-v0", tasks=[odd])).reset()


@pytest.mark.parametrize("reward", ["terminal", "dense"])
def test_a_relative_penalty_is_in_even_shares(reward):
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
        assert np.array_equal(*(info.get("_even_share_ms", np.zeros(3, bool)) for info in infos))
        np.testing.assert_allclose(*(info.get("even_share_ms", np.zeros(3)) for info in infos), rtol=1e-12)
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
