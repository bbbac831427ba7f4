"""NativeVecEnv: what stable-baselines3 sees of native environments is what `DummyVecEnv` shows of single ones."""

import csv
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from env_toys import awkward_tasks, make_tasks
from golden_rollouts import Failing
from vector_play import COLUMN_WISE, TABLE_WISE, native, some_actions, wrapped

from shardgym.envs.wrappers import RelativeReward, VectorRelativeReward
from shardgym.errors import InputError

pytest.importorskip("stable_baselines3", reason="needs the extra 'rl'")
sb3_contrib = pytest.importorskip("sb3_contrib", reason="needs the extra 'rl'")

from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.logger import configure  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

from shardgym.envs.sb3 import NativeVecEnv, RatioLog  # noqa: E402

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


@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE])
def test_it_gives_what_single_environments_with_monitors_give(env_id):
    settings = {"tasks": awkward_tasks(), "cost": Failing(), "reward": "dense", "penalty": -3.0, "max_devices": 5}
    pair = twins(env_id, **settings)
    rng, outcomes = np.random.default_rng(1), set()
    for env in pair:
        assert env.seed(7) == [7, 8, 9]
    first, second = [env.reset() for env in pair]
    for _ in range(150):
        assert_same_observations(first, second)
        masks = np.stack(pair[0].env_method("action_masks"))
        assert np.array_equal(masks, np.stack(pair[1].env_method("action_masks")))
        actions = some_actions(rng, masks, illegal=0.1)
        (first, *one), (second, *other) = [env.step(actions) for env in pair]
        np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
        assert (one[0].dtype, one[1].dtype) == (other[0].dtype, other[1].dtype)
        assert np.array_equal(one[1], other[1])
        for row in np.flatnonzero(one[1]):
            info, twin = one[2][row], other[2][row]
            assert info.keys() == twin.keys()
            assert {k: v for k, v in info.items() if k not in OWN} == {k: v for k, v in twin.items() if k not in OWN}
            assert info["episode"]["l"] == twin["episode"]["l"]
            assert info["episode"]["r"] == pytest.approx(twin["episode"]["r"], rel=1e-6)
            assert info["episode"]["t"] >= 0
            assert_same_observations(info["terminal_observation"], twin["terminal_observation"])
            assert pair[0].reset_infos[row] == pair[1].reset_infos[row]
            outcomes.add(info["outcome"])
    assert outcomes == {"complete", "invalid_action", "no_device_fits", "no_cost"}


def test_rows_are_chosen_by_indices_and_attributes_are_shared():
    venv, dummy = twins(TABLE_WISE, tasks=make_tasks())
    venv.reset()
    assert len(venv.env_method("action_masks", indices=[2, 0])) == 2
    assert len(venv.env_method("action_masks", indices=1)) == 1
    assert venv.has_attr("action_masks")
    assert not venv.has_attr("no_such_attribute")
    assert venv.env_is_wrapped(Monitor) == dummy.env_is_wrapped(Monitor) == [True] * 3
    assert venv.env_is_wrapped(RelativeReward, 0) == [False]
    with pytest.raises(InputError, match="penalty cannot be set: native environments share their settings"):
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
    venv.set_options([{"task": make_tasks()[0]}, {}, {}])
    with pytest.raises(InputError, match="only task_index may differ"):
        venv.reset()


@pytest.mark.parametrize("num_envs", [1, 3, 4])
def test_an_evaluation_plays_every_task_once(num_envs):
    """Several times in a row, though environments are in the middle of another episode when the first one ends."""
    envs = native(TABLE_WISE, num_envs, tasks=make_tasks(), sampling="cycle", autoreset_mode="SameStep")
    model = sb3_contrib.MaskablePPO("MultiInputPolicy", NativeVecEnv(envs), seed=0, device="cpu")
    for _ in range(2):
        seen = []

        def note(local, _):
            seen.extend([local["info"]["task"]] if local["done"] else [])  # noqa: B023

        evaluate_maskable(model, model.get_env(), 4, callback=note)
        assert sorted(seen) == sorted(task.name for task in make_tasks())


def test_rewards_are_relative_where_the_environment_is_wrapped():
    envs = VectorRelativeReward(native(TABLE_WISE, tasks=make_tasks(), autoreset_mode="SameStep", reward="dense"))
    singles = [lambda: Monitor(RelativeReward(gymnasium.make(TABLE_WISE, tasks=make_tasks(), reward="dense")))] * 3
    pair = NativeVecEnv(envs), DummyVecEnv(singles)
    rng = np.random.default_rng(2)
    for env in pair:
        env.seed(3)
        env.reset()
    for _ in range(40):
        actions = some_actions(rng, np.stack(pair[0].env_method("action_masks")), illegal=0)
        (_, rewards, _, infos), (_, others, _, twins_infos) = [env.step(actions) for env in pair]
        np.testing.assert_allclose(rewards, others, rtol=1e-5)
        for info, twin in zip(infos, twins_infos, strict=True):
            assert info.get("episode", {}).get("r") == pytest.approx(twin.get("episode", {}).get("r"), abs=2e-6)


def test_ratios_to_the_reference_are_logged_of_a_run(tmp_path):
    ended = []

    class Collect(BaseCallback):
        def _on_step(self):
            ended.extend(info for info in self.locals["infos"] if "ratio" in info)
            return True

    settings = {"tasks": make_tasks(), "reward": "dense", "relative_penalty": -3.0, "autoreset_mode": "SameStep"}
    envs = NativeVecEnv(VectorRelativeReward(native(TABLE_WISE, 4, **settings)))
    model = sb3_contrib.MaskablePPO("MultiInputPolicy", envs, n_steps=16, batch_size=32, n_epochs=1, seed=0)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(192, callback=[RatioLog(window=10**6), Collect()])
    model.logger.close()
    ratios = np.array([info["ratio"] for info in ended])
    complete = np.array([info["outcome"] == "complete" for info in ended])
    assert 0 < complete.sum() < len(complete)
    assert (np.isfinite(ratios) == complete).all()
    returns = np.array([info["episode"]["r"] for info in ended])
    np.testing.assert_allclose(returns, np.where(complete, -ratios, -3.0), rtol=1e-5)
    *_, last = csv.DictReader((tmp_path / "progress.csv").read_text().splitlines())
    assert float(last["rollout/ratio_mean"]) == pytest.approx(ratios[complete].mean(), rel=1e-5)


def test_ratios_to_the_reference_are_logged_of_each_episode_by_a_monitor(tmp_path):
    single = RelativeReward(gymnasium.make(TABLE_WISE, tasks=make_tasks()))
    env = Monitor(single, str(tmp_path / "own"), info_keywords=("ratio", "is_success"))
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            observation, _, ended, _, _ = env.step(observation["action_mask"].argmax())
    env.close()
    episodes = list(csv.DictReader((tmp_path / "own.monitor.csv").read_text().splitlines()[1:]))
    assert len(episodes) == 4
    for episode in episodes:
        assert (episode["ratio"] == "inf") == (episode["is_success"] == "0.0")
        assert float(episode["r"]) == pytest.approx(-float(episode["ratio"]), rel=1e-4) or episode["ratio"] == "inf"


def test_pictures_come_from_every_environment():
    venv, _ = twins(TABLE_WISE, 2, tasks=make_tasks(), render_mode="rgb_array")
    venv.reset()
    assert [image.shape[2] for image in venv.get_images()] == [3, 3]


@pytest.mark.parametrize("env_id", [TABLE_WISE, COLUMN_WISE])
def test_maskable_ppo_learns_and_is_evaluated_through_it(env_id):
    venv, _ = twins(env_id, 4, tasks=make_tasks(), reward="dense", penalty=-50.0)
    model = sb3_contrib.MaskablePPO(
        "MultiInputPolicy", venv, seed=0, device="cpu", n_steps=32, batch_size=64, n_epochs=2
    )
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(256)
    assert any((one != other).any() for one, other in zip(before, model.policy.parameters(), strict=True))
    assert len(model.ep_info_buffer) > 10
    assert len(model.ep_success_buffer) == len(model.ep_info_buffer)
    mean, _ = evaluate_policy(model, venv, n_eval_episodes=6)
    assert mean < 0


@pytest.mark.parametrize(
    ("envs", "message"),
    [
        (lambda: native(TABLE_WISE, tasks=make_tasks()), "autoreset_mode='SameStep', not 'NextStep'"),
        (lambda: wrapped(TABLE_WISE, tasks=make_tasks()), "expected a native vector environment, got SyncVectorEnv"),
        (lambda: 3, "envs: expected a native vector environment, got int 3"),
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
