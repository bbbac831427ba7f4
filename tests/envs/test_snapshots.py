"""Forking: snapshots of an episode and going back to them."""

import pickle
from itertools import product

import gymnasium
import numpy as np
import pytest
from env_toys import halvable_task, make_tasks
from gymnasium.utils.env_checker import data_equivalence
from simulator_toys import random_task

from shardgym.envs import ENV_IDS
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.errors import InputError


def play_on(env, seed):
    """Play to the end at random; return all that the steps returned."""
    rng, returned, ended = np.random.default_rng(seed), [], False
    while not ended:
        returned.append(env.step(rng.choice(np.flatnonzero(env.action_masks()))))
        ended = returned[-1][2]
    return returned


@pytest.mark.parametrize("reward", ["terminal", "dense"])
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_every_fork_goes_on_alike_and_leaves_the_others_alone(env_id, reward, simulator):
    task = random_task(np.random.default_rng(0), 8, 3)
    for cost, observation in product(("roofline", simulator), ("compact", "full_timed")):
        env = gymnasium.make(env_id, tasks=[task], cost=cost, reward=reward, observation=observation).unwrapped
        env.reset(seed=0)
        for _ in range(3):
            env.step(0)
        here = env.snapshot()
        first = play_on(env, 1)
        env.restore(here)
        play_on(env, 2)
        env.restore(here)
        assert data_equivalence(play_on(env, 1), first, exact=True)


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_a_snapshot_goes_to_another_process_and_another_environment(env_id, simulator):
    arguments = {"tasks": [random_task(np.random.default_rng(1), 6, 2)], "cost": simulator, "reward": "dense"}
    env, other = (gymnasium.make(env_id, **arguments).unwrapped for _ in range(2))
    env.reset(seed=0)
    env.step(1)
    sent = pickle.dumps(env.snapshot())
    expected = play_on(env, 3)
    other.restore(pickle.loads(sent))
    assert data_equivalence(play_on(other, 3), expected, exact=True)


def test_tree_search_by_forks_finds_what_trying_every_plan_finds():
    task = halvable_task([16, 8, 8], memory_bytes=8192)
    env = ColumnWiseEnv(tasks=[task], max_splits=1)
    env.reset()

    def best(earned=0.0):
        here, values = env.snapshot(), []
        for action in np.flatnonzero(env.action_masks()):
            _, reward, ended, _, _ = env.step(action)
            values.append(earned + reward if ended else best(earned + reward))
            env.restore(here)
        return max(values)

    tried = []
    for actions in product(range(3), repeat=5):
        env.reset()
        for action in actions:
            _, reward, ended, _, info = env.step(action)
            if ended:
                tried.append((reward, info["outcome"]))
                break
    env.reset()
    assert best() == max(reward for reward, outcome in tried if outcome == "complete")


def test_the_end_of_an_episode_is_a_point_too():
    env = TableWiseEnv(tasks=[halvable_task([4])])
    env.reset()
    start = env.snapshot()
    env.step(0)
    end = env.snapshot()
    env.restore(start)
    assert env.action_masks().any()
    env.restore(end)
    assert not env.action_masks().any()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_going_back_leaves_the_draws_of_later_tasks_alone():
    env = TableWiseEnv(tasks=make_tasks())
    env.reset(seed=5)
    here, drawn = env.snapshot(), [env.reset()[1]["task_index"] for _ in range(10)]
    env.reset(seed=5)
    env.restore(here)
    assert [env.reset()[1]["task_index"] for _ in range(10)] == drawn


def test_a_snapshot_does_not_copy_the_task():
    env = TableWiseEnv(tasks=[random_task(np.random.default_rng(2), 50, 4)])
    env.reset()
    assert env.snapshot().state.task is env.task


def test_there_is_nothing_to_keep_before_the_first_reset():
    with pytest.raises(gymnasium.error.ResetNeeded):
        TableWiseEnv(tasks=make_tasks()).snapshot()


@pytest.mark.parametrize(
    "arguments", [{"order": "dim"}, {"reward": "dense"}, {"penalty": -1.0}, {"max_devices": 9}, {"max_splits": 3}]
)
def test_a_snapshot_of_an_environment_made_otherwise_is_refused(arguments):
    env, other = ColumnWiseEnv(tasks=make_tasks()), ColumnWiseEnv(tasks=make_tasks(), **arguments)
    env.reset(seed=0)
    with pytest.raises(InputError, match="made with other arguments"):
        other.restore(env.snapshot())


def test_what_is_no_snapshot_is_refused():
    with pytest.raises(InputError, match=r"expected what snapshot\(\) returned, got dict"):
        TableWiseEnv(tasks=make_tasks()).restore({})
