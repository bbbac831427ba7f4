"""Which task an episode is of: drawn, played in order, or named by options, one for each environment."""

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks
from vector_play import COLUMN_WISE, TABLE_WISE, native

from shardgym.envs.env import TableWiseEnv
from shardgym.errors import InputError, UnknownNameError


def test_a_cycle_plays_the_tasks_in_order_and_begins_anew_with_a_seed():
    env = TableWiseEnv(tasks=make_tasks(), sampling="cycle")
    assert [env.reset()[1]["task_index"] for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [env.reset(seed=seed)[1]["task_index"] for seed in (5, None, 5)] == [0, 1, 0]
    # A named task is no turn of the cycle.
    assert env.reset(options={"task_index": 3})[1]["task_index"] == 3
    assert env.reset()[1]["task_index"] == 1


@pytest.mark.parametrize(("num_envs", "parts"), [(1, [[0, 1, 2, 3]]), (3, [[0], [1], [2, 3]]), (2, [[0, 1], [2, 3]])])
def test_native_environments_share_the_tasks(num_envs, parts):
    envs = native(TABLE_WISE, num_envs, tasks=make_tasks(), sampling="cycle")
    for _ in range(2):
        played = [[] for _ in parts]
        infos, began = envs.reset()[1], np.ones(num_envs, bool)
        for _ in range(40):
            for row in np.flatnonzero(began):
                played[row].append(int(infos["task_index"][row]))
            began = envs.unwrapped._game.ended
            infos = envs.step(envs.action_masks().argmax(axis=1))[-1]
        for turns, part in zip(played, parts, strict=True):
            assert len(turns) > len(part)
            assert turns == (part * len(turns))[: len(turns)]


@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE])
def test_each_environment_takes_the_task_that_options_give_it(env_id):
    envs = native(env_id, tasks=make_tasks())
    assert envs.reset(options={"task_index": [2, 0, 3]})[1]["task_index"].tolist() == [2, 0, 3]
    assert envs.reset(options={"task_index": np.array([1, 1, 0])})[1]["task_index"].tolist() == [1, 1, 0]
    mask = np.array([True, False, True])
    infos = envs.reset(options={"task_index": [3, 3, 2], "reset_mask": mask})[1]
    assert infos["task_index"][mask].tolist() == [3, 2]
    for indices, message in (([0, 1], "got 2 numbers of tasks for 3 environments"), ([0, 1, 9], "9 is out of range")):
        with pytest.raises(InputError, match=message):
            envs.reset(options={"task_index": indices})


def test_bad_sampling_is_an_input_error():
    with pytest.raises(UnknownNameError, match="unknown sampling 'cycles': did you mean cycle"):
        gymnasium.make(TABLE_WISE, sampling="cycles")
    with pytest.raises(InputError, match="sampling='cycle' shares 4 tasks among 5 environments: make fewer"):
        native(TABLE_WISE, 5, tasks=make_tasks(), sampling="cycle")
