"""stable-baselines3: its check and its algorithms on single environments; `NativeVecEnv` is `DummyVecEnv` of them."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from env_toys import (
    ANY_WISE,
    COLUMN_WISE,
    TABLE_WISE,
    Failing,
    awkward_tasks,
    make_tasks,
    native,
    some_actions,
    wrapped,
)

from shardgym import InputError

pytest.importorskip("stable_baselines3", reason="needs the extra 'rl'")
sb3_contrib = pytest.importorskip("sb3_contrib", reason="needs the extra 'rl'")

from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

from shardgym.envs.sb3 import NativeVecEnv  # noqa: E402

#: Entries that differ by time, or are compared separately.
OWN = {"episode", "terminal_observation", "plan", "cost"}


def twins(env_id, num_envs=3, **settings):
    """The native environments and single ones, both as stable-baselines3 wants them."""
    singles = [lambda: Monitor(gymnasium.make(env_id, **settings))] * num_envs
    return NativeVecEnv(native(env_id, num_envs, autoreset_mode="SameStep", **settings)), DummyVecEnv(singles)


def assert_same_observations(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert np.array_equal(values, other[name]), name


@pytest.mark.parametrize("arguments", [{"cost": Failing()}, {"reward": "relative"}], ids=["failing", "relative"])
@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE])
def test_it_gives_what_single_environments_with_monitors_give(env_id, arguments):
    tasks = [task for task in awkward_tasks() if "cost" in arguments or task.tables[0].name != "odd"]
    pair = twins(env_id, tasks=tasks, penalty=-3.0, max_devices=5, **arguments)
    rng, outcomes = np.random.default_rng(1), set()
    for env in pair:
        assert env.seed(7) == [7, 8, 9]
    first, second = [env.reset() for env in pair]
    for _ in range(120):
        assert_same_observations(first, second)
        masks = np.stack(pair[0].env_method("action_masks"))
        assert np.array_equal(masks, np.stack(pair[1].env_method("action_masks")))
        actions = some_actions(rng, masks, illegal=0.1)
        (first, *one), (second, *other) = [env.step(actions) for env in pair]
        np.testing.assert_allclose(one[0], other[0], rtol=1e-6, atol=1e-6)
        assert (one[0].dtype, one[1].dtype) == (other[0].dtype, other[1].dtype)
        assert np.array_equal(one[1], other[1])
        for row in np.flatnonzero(one[1]):
            info, twin = one[2][row], other[2][row]
            assert info.keys() == twin.keys()
            left = [{k: v for k, v in i.items() if k not in OWN | {"ratio", "cost_ms"}} for i in (info, twin)]
            assert left[0] == left[1]
            assert info["episode"]["l"] == twin["episode"]["l"]
            assert info["episode"]["r"] == pytest.approx(twin["episode"]["r"], rel=1e-5)
            assert_same_observations(info["terminal_observation"], twin["terminal_observation"])
            assert pair[0].reset_infos[row] == pair[1].reset_infos[row]
            outcomes.add(info["outcome"])
    expected = {"complete", "invalid_action", "no_device_fits"}
    assert outcomes == expected | ({"no_cost"} if "cost" in arguments else set())


def test_rows_are_chosen_by_indices_and_attributes_are_shared():
    venv, dummy = twins(TABLE_WISE, tasks=make_tasks())
    venv.reset()
    assert len(venv.env_method("action_masks", indices=[2, 0])) == 2
    assert venv.has_attr("action_masks")
    assert not venv.has_attr("no_such_attribute")
    assert venv.env_is_wrapped(Monitor) == dummy.env_is_wrapped(Monitor) == [True] * 3
    with pytest.raises(NotImplementedError, match="penalty: native environments share their settings"):
        venv.set_attr("penalty", -1)


def test_options_hold_for_the_next_reset():
    venv, _ = twins(TABLE_WISE, tasks=make_tasks())
    venv.set_options({"task_index": 2})
    venv.reset()
    assert [info["task_index"] for info in venv.reset_infos] == [2, 2, 2]
    venv.seed(0)
    venv.reset()
    assert {info["task_index"] for info in venv.reset_infos} != {2}
    venv.set_options([{"task_index": row} for row in range(3)])
    venv.reset()
    assert [info["task_index"] for info in venv.reset_infos] == [0, 1, 2]
    venv.set_options([{}, {"task_index": 1}, {}])
    with pytest.raises(InputError, match="options: expected the same names for all environments"):
        venv.reset()


def test_wrappers_of_gymnasium_may_be_below():
    envs = native(TABLE_WISE, 2, tasks=make_tasks(), autoreset_mode="SameStep")
    venv = NativeVecEnv(gymnasium.wrappers.vector.RecordEpisodeStatistics(envs))
    venv.reset()
    dones = np.zeros(2, dtype=bool)
    while not dones.any():
        _, _, dones, infos = venv.step(np.stack(venv.env_method("action_masks")).argmax(axis=1))
    row = int(dones.argmax())
    assert venv.reset_infos[row]["episode"]["l"] == infos[row]["episode"]["l"] > 0


@pytest.mark.parametrize("env_id", [COLUMN_WISE, ANY_WISE])
def test_maskable_ppo_learns_and_is_evaluated_on_native_ones(env_id):
    venv, _ = twins(env_id, 4, tasks=make_tasks(), reward="relative", observation="timed")
    model = sb3_contrib.MaskablePPO(
        "MultiInputPolicy", venv, seed=0, device="cpu", n_steps=16, batch_size=64, n_epochs=1
    )
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(128)
    assert any((one != other).any() for one, other in zip(before, model.policy.parameters(), strict=True))
    assert len(model.ep_info_buffer) > 5
    assert len(model.ep_success_buffer) == len(model.ep_info_buffer)
    mean, _ = evaluate_policy(model, venv, n_eval_episodes=4)
    assert -5 <= mean < 0


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        (lambda: native(TABLE_WISE, tasks=make_tasks()), "autoreset_mode='SameStep', not 'NextStep'"),
        (lambda: wrapped(TABLE_WISE, tasks=make_tasks()), "expected a native vector environment, got SyncVectorEnv"),
    ],
)
def test_other_environments_are_input_errors(envs, message):
    with pytest.raises(InputError, match=message):
        NativeVecEnv(envs())


def test_without_the_extra_the_error_names_it():
    program = "import sys; sys.modules['stable_baselines3'] = None; import shardgym.envs.sb3"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "MissingDependencyError: shardgym.envs.sb3 needs 'stable_baselines3'" in done.stderr
    assert "pip install 'shardgym[rl]'" in done.stderr
