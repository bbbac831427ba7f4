"""Native vector environments: row by row what Gymnasium's wrappers of single ones return; modes, seeds, errors."""

from collections import Counter

import gymnasium
import numpy as np
import pytest
from env_toys import (
    ANY_WISE,
    COLUMN_WISE,
    TABLE_WISE,
    Failing,
    assert_same,
    awkward_tasks,
    make_tasks,
    native,
    play_together,
    random_task,
    some_actions,
    wrapped,
)

from shardgym import InputError
from shardgym.envs import ENV_IDS, game
from shardgym.envs.vector_env import IDLE


@pytest.mark.parametrize(
    ("env_id", "mode"), [(TABLE_WISE, "NextStep"), (COLUMN_WISE, "SameStep"), (ANY_WISE, "NextStep")]
)
def test_they_agree_on_every_end(env_id, mode):
    """Tasks that cannot be placed or scored among them, in full observations, with few halvings."""
    settings = {"tasks": awkward_tasks(), "penalty": -3.0, "autoreset_mode": mode, "max_devices": 5, "cost": Failing()}
    settings |= {"observation": "full", "max_tables": 8} | ({} if env_id == TABLE_WISE else {"max_splits": 1})
    outcomes = play_together([make(env_id, **settings) for make in (wrapped, native)], seed=5, steps=150)
    ends = {"complete", "invalid_action", "no_device_fits", "no_cost"}
    assert {name for name, count in outcomes.items() if count > 3} == ends


@pytest.mark.parametrize(
    ("env_id", "reward", "observation", "max_splits"),
    [
        (TABLE_WISE, "dense", "full_timed", None), (TABLE_WISE, "terminal", "compact", None),
        (COLUMN_WISE, "dense", "timed", 0), (COLUMN_WISE, "terminal", "timed", 6), (ANY_WISE, "dense", "timed", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cost", ["simulator", "roofline"])
def test_they_agree_on_costs_times_and_halvings(simulator, cost, env_id, reward, observation, max_splits):
    rng = np.random.default_rng(6)
    tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (7, 3), (2, 8), (4, 1), (6, 2))]
    settings = {"tasks": tasks, "autoreset_mode": "SameStep", "cost": simulator if cost == "simulator" else cost}
    settings |= {"reward": reward, "observation": observation}
    settings |= {} if max_splits is None else {"max_splits": max_splits}
    assert play_together([make(env_id, **settings) for make in (wrapped, native)], seed=6, steps=40)["complete"] > 5


@pytest.mark.parametrize("observation", ["timed", "full"])
def test_they_agree_on_holders_in_fast_domains(observation):
    """Tasks of one domain and of several, also of some that do not divide the devices; memory binds in some."""
    rng = np.random.default_rng(9)
    sizes = ((4, 2, 2**30), (8, 2, 2**17), (4, 4, 2**18), (3, 2, 2**30), (8, 4, 2**30), (1, 1, 2**30))
    tasks = [
        random_task(rng, 6, devices, fast_domain_size=domain, memory_bytes=memory) for devices, domain, memory in sizes
    ]
    settings = {"tasks": tasks, "reward": "dense", "observation": observation, "autoreset_mode": "SameStep"}
    envs = [make(ANY_WISE, num_envs=6, **settings) for make in (wrapped, native)]
    outcomes = play_together(envs, seed=7, steps=60, illegal=0.03)
    assert outcomes["complete"] > 10
    assert outcomes["no_device_fits"] > 0


@pytest.mark.parametrize(
    ("env_id", "cost", "reward", "observation"),
    [
        (TABLE_WISE, "simulator", "terminal", "compact"), (TABLE_WISE, "failing", "terminal", "compact"),
        (COLUMN_WISE, "roofline", "relative", "timed"), (ANY_WISE, "roofline", "terminal", "timed"),
    ],
)  # fmt: skip
def test_without_plans_in_infos_all_else_is_the_same(simulator, env_id, cost, reward, observation):
    """Costs of complete plans then come from running sums where these are kept, and from the cost model elsewhere."""
    rng = np.random.default_rng(3)
    tasks = awkward_tasks()
    if cost == "simulator":
        tasks = [random_task(rng, tables, devices) for tables, devices in ((5, 2), (3, 3), (4, 1))]
    if reward == "relative":
        tasks = [task for task in tasks if task.tables[0].name != "odd"]
    model = {"simulator": simulator, "roofline": "roofline", "failing": Failing()}[cost]
    settings = {"tasks": tasks, "cost": model, "reward": reward, "observation": observation, "penalty": -3.0}
    envs = native(env_id, **settings), native(env_id, plans=False, **settings)
    masks = envs[0].reset(seed=1)[0]["action_mask"]
    envs[1].reset(seed=1)
    ends = Counter()
    for _ in range(80):
        actions = some_actions(rng, masks, 0.05)
        full, lean = (env.step(actions) for env in envs)
        masks = full[0]["action_mask"]
        ends.update(full[-1].get("outcome", ()))
        left_out = {name for name in full[-1] if name.removeprefix("_") in {"plan", "cost"}}
        assert full[-1].keys() - lean[-1].keys() == left_out
        assert_same((*full[:-1], {name: full[-1][name] for name in lean[-1]}), lean)
    assert ends["complete"] > 3
    assert (ends["no_cost"] > 0) == (cost == "failing" or (cost, reward) == ("roofline", "terminal"))


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
    envs = native(env_id, tasks=make_tasks(), autoreset_mode="Disabled", reward="dense")
    rng, waiting = np.random.default_rng(2), np.zeros(3, dtype=bool)
    observations, infos = envs.reset(seed=1, options={"task_index": [0, 1, 2]})
    assert infos["task_index"].tolist() == [0, 1, 2]
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
    # Idling is an invalid action while an episode runs.
    assert envs.step([IDLE] * 3)[-1]["outcome"][1] == "invalid_action"


def test_tasks_may_be_given_one_for_each():
    envs = native(TABLE_WISE, tasks=make_tasks())
    tasks = make_tasks()[2:0:-1]
    assert envs.reset(options={"task": [*tasks, tasks[0]]})[1]["task"].tolist() == ["uneven", "tight", "uneven"]
    assert envs.reset(options={"task": tasks[0]})[1]["task"].tolist() == ["uneven"] * 3


def test_single_environments_can_be_seeded():
    pair = [make(TABLE_WISE, tasks=make_tasks()) for make in (wrapped, native)]
    for seed in (7, [1, None, 3], [None, 2, None]):
        assert_same(*[envs.reset(seed=seed) for envs in pair])
    assert pair[1].np_random_seed == (1, 2, 3)
    assert len(pair[1].np_random) == 3
    drawn = {tuple(native(TABLE_WISE, suite="dlrm4-v2").reset()[1]["task_index"]) for _ in range(5)}
    assert len(drawn) > 1


def test_it_renders_what_single_environments_render():
    pair = [make(COLUMN_WISE, tasks=make_tasks(), render_mode="ansi") for make in (wrapped, native)]
    with pytest.raises(gymnasium.error.ResetNeeded):
        pair[1].render()
    rng, returned = np.random.default_rng(4), [envs.reset(seed=4) for envs in pair]
    for _ in range(15):
        assert pair[0].render() == pair[1].render()
        actions = some_actions(rng, returned[1][0]["action_mask"], 0.0)
        returned = [envs.step(actions) for envs in pair]


def test_tasks_that_were_played_are_forgotten_when_all_start_anew(simulator, monkeypatch):
    monkeypatch.setattr(game, "_TASKS_KEPT", 3)
    rng = np.random.default_rng(5)
    tasks = [random_task(rng, int(rng.integers(2, 9)), 1 + n % 3) for n in range(12)]
    settings = {"tasks": tasks, "cost": simulator, "reward": "dense", "num_envs": 2}
    pair = [make(ANY_WISE, **settings) for make in (wrapped, native)]
    for seed in range(2):
        assert play_together(pair, seed=seed, steps=60)["complete"] > 3
        assert len(pair[1]._game.catalog.tasks) > 3
        pair[1].reset()
        assert len(pair[1]._game.catalog.tasks) <= 2


def test_before_the_first_reset_there_is_nothing_to_do():
    envs = native(TABLE_WISE, tasks=make_tasks())
    assert envs.action_masks().shape == (3, 4)
    assert not envs.action_masks().any()
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step([0, 0, 0])
    with pytest.raises(gymnasium.error.ResetNeeded, match="environments that have no episode yet"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1, 2]}, "seed: expected one integer, or 3, got 2"),
        ({"seed": []}, "seed: expected one integer, or 3, got 0"),
        ({"options": {"reset_mask": np.ones(3)}}, "expected 3 booleans"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, "booleans, at least one of them true"),
        ({"options": {"task_index": [0, 1]}}, "task_index: expected one value, or 3, got 2"),
        ({"options": {"task_index": 9}}, "task_index 9 is out of range"),
        ({"num_envs": 0}, "num_envs: expected an integer >= 1, got 0"),
        ({"autoreset_mode": "SomeStep"}, "unknown autoreset_mode 'SomeStep': did you mean SameStep"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    settings = {name: arguments.pop(name) for name in ("num_envs", "autoreset_mode") if name in arguments}
    with pytest.raises(ValueError, match=message):
        native(TABLE_WISE, tasks=make_tasks(), **settings).reset(**arguments)


@pytest.mark.parametrize("actions", [[0, 0], 0, np.zeros((3, 1), int), np.zeros(3), [True] * 3, ["0"] * 3])
def test_one_whole_number_is_needed_for_each(actions):
    envs = native(TABLE_WISE, tasks=make_tasks())
    envs.reset(seed=0)
    with pytest.raises(InputError, match=r"actions: expected whole numbers of shape \(3,\), got "):
        envs.step(actions)
    assert envs.step(np.zeros(3, np.uint8))[-1]["placed"].tolist() == [1] * 3
