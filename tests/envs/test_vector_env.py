"""What native vector environments do besides what single ones do: modes, masks, seeds, errors."""

import json
import pickle

import gymnasium
import numpy as np
import pytest
from env_toys import make_tasks
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector
from simulator_toys import random_task
from vector_play import COLUMN_WISE, TABLE_WISE, assert_same, native, play_together, some_actions, wrapped

from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS, game
from shardgym.envs.vector_env import IDLE, PlacementVectorEnv
from shardgym.errors import InputError


class Closing(RooflineCost):
    closed = 0

    def close(self):
        type(self).closed += 1


def masked(envs, seed, steps=30):
    """Yield what was returned in legal play."""
    rng, returned = np.random.default_rng(seed), envs.reset(seed=seed)
    for _ in range(steps):
        yield returned
        returned = envs.step(some_actions(rng, returned[0]["action_mask"], 0.0))


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_make_vec_makes_native_ones_and_says_how_they_reset(env_id):
    envs = gymnasium.make_vec(env_id, num_envs=2, suite="tiny-v1")
    assert isinstance(envs, PlacementVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert native(env_id, suite="tiny-v1", autoreset_mode="SameStep").metadata["autoreset_mode"].value == "SameStep"


def test_the_spec_survives_json():
    envs = native(TABLE_WISE, suite="tiny-v1", order="lookup", autoreset_mode="SameStep")
    text = envs.spec.to_json()
    again = gymnasium.make_vec(EnvSpec.from_json(text))
    assert json.loads(text)["kwargs"]["num_envs"] == again.num_envs == 3
    for one, other in zip(masked(envs, 0), masked(again, 0), strict=True):
        assert_same(one, other)


def test_the_next_step_after_an_end_resets_and_ignores_the_action():
    envs = native(TABLE_WISE, num_envs=1, tasks=make_tasks()[3:])
    envs.reset(seed=0)
    envs.step([0])
    _, rewards, terminated, _, infos = envs.step([0])
    assert terminated[0]
    assert rewards[0] == -infos["cost"][0].total_ms
    assert not envs.action_masks().any()
    _, rewards, terminated, _, infos = envs.step(["nonsense"])
    assert (rewards[0], terminated[0], infos["placed"][0]) == (0.0, False, 0)
    assert "outcome" not in infos


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_disabled_autoreset_waits_for_a_reset_of_what_ended(env_id):
    """The others play on as if nothing had happened: with the halvings that they have made."""
    settings = {"tasks": make_tasks(), "autoreset_mode": "Disabled"}
    pair = [make(env_id, **settings) for make in (wrapped, native)]
    rng, resets = np.random.default_rng(0), 0
    returned = [envs.reset(seed=[3, 4, 5]) for envs in pair]
    for _ in range(60):
        assert_same(*returned)
        actions = some_actions(rng, returned[0][0]["action_mask"], 0.05)
        returned = [envs.step(actions) for envs in pair]
        ended = returned[0][2]
        if ended.any():
            assert_same(*returned)
            with pytest.raises(gymnasium.error.ResetNeeded, match=rf"environment {ended.argmax()} has ended"):
                pair[1].step(np.zeros(3, dtype=int))
            resets += 1
            returned = [envs.reset(options={"reset_mask": ended.copy(), "task_index": 1}) for envs in pair]
    assert resets > 5


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_ended_environments_idle_while_others_play_on(env_id):
    dense = {"reward": "dense"}
    envs = native(env_id, tasks=make_tasks(), autoreset_mode="Disabled", **dense)
    rng, waiting = np.random.default_rng(2), np.zeros(3, dtype=bool)
    indices = {"task_index": [0, 1, 2]}
    observations, infos = envs.reset(seed=1, options=indices)
    ends = np.zeros(3, dtype=int)
    while not waiting.all():
        actions = np.where(waiting, IDLE, some_actions(rng, observations["action_mask"], 0.0))
        before = observations
        observations, rewards, terminated, _, infos = envs.step(actions)
        for row in np.flatnonzero(waiting):
            assert (rewards[row], terminated[row]) == (0.0, False)
            assert all(np.array_equal(before[name][row], observations[name][row]) for name in observations)
            assert "outcome" not in infos or not infos["_outcome"][row]
        ends += terminated
        waiting |= terminated
    assert ends.tolist() == [1, 1, 1]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environment 1 has ended: .* idle by the action -1"):
        envs.step([IDLE, 0, IDLE])
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    _, _, terminated, _, _ = envs.step([IDLE, 0, IDLE])
    assert not terminated[[0, 2]].any()


def test_idling_is_an_invalid_action_while_an_episode_runs():
    envs = native(TABLE_WISE, tasks=make_tasks(), autoreset_mode="Disabled")
    envs.reset(seed=0)
    _, _, terminated, _, infos = envs.step([IDLE, 0, 0])
    assert terminated[0]
    assert infos["outcome"][0] == "invalid_action"


def test_single_environments_can_be_seeded():
    pair = [make(TABLE_WISE, tasks=make_tasks()) for make in (wrapped, native)]
    for seed in (7, [1, None, 3], [None, 2, None]):
        assert_same(*[envs.reset(seed=seed) for envs in pair])
    assert pair[1].np_random_seed == (1, 2, 3)
    assert len(pair[1].np_random) == 3


def test_an_environment_that_was_not_seeded_draws_at_random():
    drawn = {tuple(native(TABLE_WISE, suite="dlrm4-v1").reset()[1]["task_index"]) for _ in range(3)}
    assert len(drawn) > 1


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_a_pickled_environment_goes_on_where_it_was(env_id):
    envs = native(env_id, tasks=make_tasks(), reward="dense")
    for _ in masked(envs, 2, 5):
        pass
    again, rng = pickle.loads(pickle.dumps(envs)), np.random.default_rng(3)
    for _ in range(40):
        actions = some_actions(rng, envs.action_masks(), 0.1)
        assert_same(envs.step(actions), again.step(actions))


@pytest.mark.parametrize("wrapper", [vector.RecordEpisodeStatistics, vector.DictInfoToList, vector.FlattenObservation])
def test_vector_wrappers_of_gymnasium_go_on_top(wrapper):
    def strip(returned):
        infos = returned[-1]
        if isinstance(infos, dict) and "episode" in infos:
            del infos["episode"]["t"]
        return returned[:-1], infos

    pair = [wrapper(make(TABLE_WISE, tasks=make_tasks())) for make in (wrapped, native)]
    rng = np.random.default_rng(9)
    assert data_equivalence(*[envs.reset(seed=9) for envs in pair], exact=True)
    for _ in range(40):
        actions = rng.integers(0, 2, 3)
        assert data_equivalence(*[strip(envs.step(actions)) for envs in pair], exact=True)


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_it_renders_what_single_environments_render(mode):
    pair = [make(COLUMN_WISE, tasks=make_tasks(), render_mode=mode) for make in (wrapped, native)]
    assert pair[1].render_mode == mode
    with pytest.raises(gymnasium.error.ResetNeeded):
        pair[1].render()
    for returned in zip(*(masked(envs, 4) for envs in pair), strict=True):
        assert_same(*returned)
        assert data_equivalence(*[envs.render() for envs in pair], exact=True)
    assert native(TABLE_WISE).render() is None


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_tasks_that_are_not_played_are_forgotten(env_id, simulator, monkeypatch):
    monkeypatch.setattr(game, "_TASKS_KEPT", 3)
    rng = np.random.default_rng(5)
    tasks = [random_task(rng, int(rng.integers(2, 9)), 1 + n % 3) for n in range(12)]
    settings = {"tasks": tasks, "cost": simulator, "reward": "dense", "num_envs": 2}
    pair = [make(env_id, **settings) for make in (wrapped, native)]
    assert play_together(pair, seed=6, steps=250)["complete"] > 20
    assert len(pair[1]._game.catalog.tasks) <= 6


def test_actions_may_be_lists_or_other_numbers():
    pair = [make(TABLE_WISE, tasks=make_tasks()) for make in (wrapped, native)]
    arrays = np.array([0.0, 1.0, 2.0]), np.array([0, 1, 2], np.uint8)
    for actions in (*arrays, [0, 1.5, 0], [True, 0, None], [2**70, 0, 0]):
        assert_same(*[envs.reset(seed=1) for envs in pair])
        assert_same(*[envs.step(actions) for envs in pair])


def test_only_a_cost_model_made_here_is_closed():
    native(TABLE_WISE, tasks=make_tasks(), cost=Closing()).close()
    assert Closing.closed == 0
    native(TABLE_WISE, tasks=make_tasks(), cost=f"{__name__}:Closing").close()
    assert Closing.closed == 1


def test_before_the_first_reset_there_is_nothing_to_do():
    envs = native(TABLE_WISE, tasks=make_tasks())
    assert envs.action_masks().shape == (3, 4)
    assert not envs.action_masks().any()
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step([0, 0, 0])
    with pytest.raises(InputError, match="reset all of them first"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs 0 is not a whole number from 1 on"),
        ({"num_envs": "x"}, "num_envs 'x' is not a whole number from 1 on"),
        ({"autoreset_mode": "SomeStep"}, "unknown autoreset_mode 'SomeStep': did you mean SameStep"),
    ],
)
def test_arguments_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        native(TABLE_WISE, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1, 2]}, "got 2 seeds for 3 environments"),
        ({"seed": "1"}, "seed '1' is neither a whole number nor a list of them"),
        ({"options": {"reset_mask": [True] * 3}}, "not an array of 3 booleans"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, "at least one is true"),
        ({"options": {"task_index": 9}}, "task_index 9 is out of range"),
    ],
)
def test_resets_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        native(TABLE_WISE, tasks=make_tasks()).reset(**arguments)


@pytest.mark.parametrize("actions", [[0, 0], 0, np.zeros((3, 1), int)])
def test_one_action_is_needed_for_each(actions):
    envs = native(TABLE_WISE, tasks=make_tasks())
    envs.reset(seed=0)
    with pytest.raises(InputError, match="for 3 environments: expected one for each"):
        envs.step(actions)
    with pytest.raises(InputError, match=r"got actions \[0, \[1\], 2\]: expected one for each of 3 environments"):
        envs.step([0, [1], 2])
