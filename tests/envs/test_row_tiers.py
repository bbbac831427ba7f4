"""RowTiers: plans, masks, rewards and ends, and what Gymnasium asks of single and vector environments."""

import dataclasses
import itertools
import json
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from env_toys import masked_rollout
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from vector_play import native, play_together, wrapped

from shardgym import EmbeddingTable, InputError, ShardingTask, Topology, make_cost
from shardgym.envs import tier_game
from shardgym.envs.row_tiers import RowTiersEnv
from shardgym.envs.wrappers import RelativeReward, VectorRelativeReward
from shardgym.row_tiers import Tiers, rows_of_shares, tier_plan
from shardgym.table import UniformIds, ZipfIds

ENV_ID = "ShardGym/RowTiers-v0"
HOT = ZipfIds(s=1.1, row_order="by_frequency")


def nodes_task(*laws, rows=96, devices=8, domain=4, room=1.6, pooling="none"):
    tables = tuple(EmbeddingTable(f"t{n}", rows * (n + 1), 8, 4.0, law, pooling=pooling) for n, law in enumerate(laws))
    total = sum(table.num_embeddings * 8 * 4 for table in tables)
    topology = Topology(
        num_devices=devices, memory_bytes=(int(room * total / devices),) * devices, device="a100",
        fast_domain_size=domain, intra_bandwidth=4e9, inter_bandwidth=1e9,
    )  # fmt: skip
    return ShardingTask(tables, topology, 8 * devices, name=f"{len(laws)} tables, {devices} devices, room {room}")


def some_tasks():
    """Several nodes, one node, one device, tight and roomy memory, and tables that do not fit at all."""
    return [
        nodes_task(HOT, HOT, HOT), nodes_task(HOT, UniformIds(), room=9.0), nodes_task(HOT, HOT, devices=4, room=2.0),
        nodes_task(HOT, devices=1, domain=1), nodes_task(HOT, HOT, pooling="sum"), nodes_task(HOT, HOT, room=0.9),
    ]  # fmt: skip


def plans_reached(env, levels):
    """All complete plans, found by trying every valid action."""
    reached = []

    def go_on():
        here = env.snapshot()
        for level in np.flatnonzero(env.action_masks()).tolist():
            assert level < levels
            _, _, ended, _, info = env.step(level)
            if ended:
                assert info["outcome"] == "complete"
                reached.append(info["plan"])
            else:
                go_on()
            env.restore(here)

    env.reset()
    go_on()
    return reached


@pytest.mark.parametrize("room", [1.0, 1.3, 1.9, 3.0, 100.0])
def test_every_plan_that_the_rules_allow_is_reached_once(room):
    """Uniform tables have one stripe a tier, and rows divide by all devices, so that devices take alike."""
    task = nodes_task(UniformIds(), UniformIds(), room=room)
    env = RowTiersEnv(tasks=[task], levels=4)
    reached = plans_reached(env, 4)
    cuts = [[rows_of_shares(table, [n / 3])[0] for n in range(4)] for table in task.tables]
    expected = set()
    for pairs in itertools.product(*(itertools.combinations_with_replacement(of_table, 2) for of_table in cuts)):
        plan = tier_plan(task, [Tiers(*pair) for pair in pairs])
        if max(plan.bytes_per_device(task)) <= task.capacity_bytes[0]:
            plan.validate(task)
            expected.add(plan)
    assert set(reached) == expected
    assert len(reached) == len(expected) == {1.0: 1, 100.0: 100}.get(room, len(expected))


def test_on_one_node_a_table_takes_one_step():
    task = nodes_task(UniformIds(), devices=4, room=100.0)
    reached = plans_reached(RowTiersEnv(tasks=[task], levels=4), 4)
    assert [len(plan.of_table("t0")) for plan in reached] == [4, 5, 5, 1]


def test_levels_are_shares_of_lookups_and_levels_without_more_rows_are_no_choice():
    table = EmbeddingTable("t", 1000, 8, 4.0, ZipfIds(s=3.0, row_order="by_frequency"))
    task = dataclasses.replace(nodes_task(HOT, room=1e6), tables=(table,))
    env = RowTiersEnv(tasks=[task], levels=11)
    observation, _ = env.reset()
    # The first row has 83 % of the lookups.
    assert np.flatnonzero(observation["action_mask"]).tolist() == [0, 1, 9, 10]
    rows = observation["levels"].reshape(11, 3)[:, 0] * 1000
    assert rows.round().tolist() == [0, *[1] * 8, 2, 1000]
    observation, *_, info = env.step(1)
    assert info["rows_everywhere"] == 1
    assert observation["table"][6:].tolist() == pytest.approx([1.0, 0.1])
    assert np.flatnonzero(observation["action_mask"]).tolist() == [1, 9, 10]


def test_a_complete_plan_earns_its_cost_with_hot_rows_on_top():
    mild = ZipfIds(s=0.5, row_order="by_frequency")
    task = nodes_task(mild, mild, room=9.0)
    env = gymnasium.make(ENV_ID, tasks=[task])
    env.reset(seed=0)
    rewards = []
    for level in (2, 4, 1, 3):
        _, reward, ended, truncated, info = env.step(level)
        rewards.append(reward)
    assert ended and not truncated  # noqa: PT018
    assert rewards[:3] == [0.0] * 3
    [cost] = make_cost("replay", ids="expected").evaluate(task, [info["plan"]])
    assert info["cost"] == cost
    assert rewards[3] == -cost.total_ms == -info["cost_ms"]
    # The larger table comes up first.
    (large,) = rows_of_shares(task.tables[1], [0.2])
    assert info["plan"].of_table("t1")[0].rows == (0, large)
    assert len(info["plan"].of_table("t1")[0].devices) == 8
    assert info["is_success"] == 1.0


def test_masked_play_stays_in_the_spaces_and_always_completes_what_fits():
    env = gymnasium.make(ENV_ID, tasks=some_tasks())
    outcomes = set()
    for seed in range(3):
        for observation, reward, _, _, info in masked_rollout(env, seed, steps=120):
            assert env.observation_space.contains(observation)
            assert np.isfinite(reward)
            assert np.array_equal(env.get_wrapper_attr("action_masks")(), observation["action_mask"].astype(bool))
            outcomes.add(info.get("outcome"))
            if info.get("outcome") == "complete":
                info["plan"].validate(env.get_wrapper_attr("task"))
    assert outcomes == {None, "complete", "no_device_fits"}


def test_tables_that_do_not_fit_end_with_the_first_step_and_a_reason():
    env = gymnasium.make(ENV_ID, tasks=some_tasks()[5:], penalty=-7.0)
    observation, info = env.reset(seed=0)
    assert "cut by rows over all devices take up to" in info["reason"]
    assert observation["action_mask"].all()
    _, reward, ended, _, info = env.step(3)
    assert (reward, ended, info["outcome"]) == (-7.0, True, "no_device_fits")


@pytest.mark.parametrize("action", [-1, 11, 2.5, "x"])
def test_an_action_that_is_no_level_ends_the_episode(action):
    env = RowTiersEnv(tasks=[nodes_task(HOT)])
    env.reset(seed=0)
    _, reward, ended, _, info = env.step(action)
    assert (reward, ended, info["outcome"]) == (-1000.0, True, "invalid_action")
    assert info["reason"].startswith(f"level {action} of table 't0' is not valid: expected one of 0, ")
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode has ended"):
        env.step(0)


def test_a_lower_second_level_is_not_valid():
    env = RowTiersEnv(tasks=[nodes_task(HOT, room=9.0)])
    env.reset(seed=0)
    env.step(5)
    assert env.step(4)[4]["outcome"] == "invalid_action"


def test_costs_that_price_no_tiers_are_refused():
    with pytest.raises(InputError, match="cost 'roofline' prices no rows in tiers: 'replay' does"):
        RowTiersEnv(tasks=[nodes_task(HOT)], cost="roofline")


@pytest.mark.parametrize(
    "arguments", [{"tasks": some_tasks()}, {"suite": "quick-v1"}, {"suite": "quick-v1", "pool": "synthetic-2021"}]
)
def test_check_env_passes_without_a_warning(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(ENV_ID, **arguments).unwrapped)


def test_the_spec_survives_json():
    env = gymnasium.make(ENV_ID, suite="quick-v1", levels=5, cost="replay", cost_settings={"seed": 2})
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert json.loads(env.spec.to_json())["kwargs"]["levels"] == 5
    for one, other in zip(masked_rollout(env, 0), masked_rollout(again, 0), strict=True):
        assert data_equivalence(one, other, exact=True)


def test_snapshots_and_pickled_environments_go_on_alike():
    env = gymnasium.make(ENV_ID, tasks=some_tasks()).unwrapped
    env.reset(seed=1, options={"task_index": 0})
    env.step(0)
    again = pickle.loads(pickle.dumps(env))
    other = gymnasium.make(ENV_ID, tasks=some_tasks()).unwrapped
    other.restore(pickle.loads(pickle.dumps(env.snapshot())))
    for place in (-1, 0, -1, 0, -1):
        action = np.flatnonzero(env.action_masks())[place]
        returned = [one.step(action) for one in (env, again, other)]
        assert data_equivalence(returned[0], returned[1], exact=True)
        assert data_equivalence(returned[0], returned[2], exact=True)
    assert returned[0][2]
    assert data_equivalence(env.reset(), again.reset(), exact=True)


@pytest.mark.parametrize("kept", [1, 1024])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_native_vector_environments_agree_with_wrapped_ones(mode, kept, monkeypatch):
    """Also where tasks are forgotten while other episodes run."""
    monkeypatch.setattr(tier_game, "_TASKS_KEPT", kept)
    settings = {"tasks": some_tasks(), "num_envs": 2 if kept == 1 else 4, "autoreset_mode": mode, "penalty": -5.0}
    outcomes = play_together([make(ENV_ID, **settings) for make in (wrapped, native)], seed=3, steps=240, illegal=0.05)
    assert min(outcomes[name] for name in ("complete", "invalid_action", "no_device_fits")) > 5


def test_plans_without_a_cost_earn_the_penalty():
    task = nodes_task(HOT, devices=6, domain=4)
    env = gymnasium.make(ENV_ID, tasks=[task], penalty=-3.0)
    env.reset(seed=0)
    _, reward, ended, _, info = env.step(1)
    assert (reward, ended, info["outcome"]) == (-3.0, True, "no_cost")
    assert info["reason"].startswith("groups of 6 devices are neither parts nor multiples")


def test_rewards_over_the_reference():
    task = nodes_task(HOT, HOT)
    env = RelativeReward(gymnasium.make(ENV_ID, tasks=[task]))
    _, info = env.reset(seed=0)
    for _ in range(4):
        _, reward, _, _, end = env.step(0)
    assert reward == pytest.approx(-end["cost_ms"] / info["reference_ms"])
    envs = VectorRelativeReward(native(ENV_ID, tasks=[task]))
    _, infos = envs.reset(seed=0)
    assert infos["reference_ms"].tolist() == [info["reference_ms"]] * 3


@pytest.mark.parametrize("kind", ["single", "native"])
def test_dense_rewards_are_what_the_tables_that_are_cut_take_more(kind):
    """They add up to minus the cost; the first table is priced as if it were alone."""
    task = nodes_task(*[ZipfIds(s=0.5, row_order="by_frequency")] * 3, room=20.0)
    rewards, levels = [], (2, 4, 1, 3, 0, 5)
    if kind == "single":
        env = gymnasium.make(ENV_ID, tasks=[task], reward="dense")
        env.reset(seed=0)
        steps = [env.step(level) for level in levels]
        rewards = [step[1] for step in steps]
        end = steps[-1][4]
    else:
        envs = native(ENV_ID, tasks=[task], reward="dense")
        envs.reset(seed=0)
        steps = [envs.step(np.full(3, level)) for level in levels]
        rewards = [float(step[1][2]) for step in steps]
        end = {name: steps[-1][4][name][2] for name in ("cost", "plan")}
    assert rewards[::2] == [0.0] * 3
    assert min(-reward for reward in rewards[1::2]) > 0
    assert sum(rewards) == pytest.approx(-end["cost"].total_ms)
    first = task.tables[2]
    alone = dataclasses.replace(task, tables=(first,))
    tiers = Tiers(*rows_of_shares(first, [0.2, 0.4]))
    [cost] = make_cost("replay", ids="expected").evaluate(alone, [tier_plan(alone, [tiers])])
    assert rewards[1] == pytest.approx(-cost.total_ms)


def test_penalties_relative_to_the_reference():
    env = RowTiersEnv(tasks=[nodes_task(HOT)], relative_penalty=-3.0)
    env.reset(seed=0)
    assert env.step(-1)[1] == pytest.approx(-3.0 * env.reference_ms())


def test_text_shows_the_tables_that_are_cut():
    task = nodes_task(UniformIds(), UniformIds(), room=9.0)
    env = gymnasium.make(ENV_ID, tasks=[task], render_mode="ansi")
    env.reset(seed=0)
    lines = env.render().splitlines()
    assert lines[0] == "0 of 2 tables cut; next: 't1', 192 x 8"
    assert "*" not in "".join(lines[1:])
    env.step(5)
    rows = rows_of_shares(task.tables[1], [0.5])[0]
    assert env.render().splitlines()[0].endswith(f"'t1', 192 x 8, whose first {rows} rows are everywhere")
    env.step(5)
    lines = env.render().splitlines()
    assert lines[0] == "1 of 2 tables cut; next: 't0', 96 x 8"
    # On each device all rows of one half, and an eighth of the other.
    assert {line.replace("*", "").split()[1] for line in lines[3:11]} == {"2"}
    assert lines[-1] == "* the slowest device, which sets the cost"
    for level in (0, 0):
        *_, info = env.step(level)
    assert env.render().startswith("2 of 2 tables cut\n")
    slowest = float(info["cost"].per_device.sum(axis=1).max())
    shown = [
        float(line.split()[2]) + float(line.split()[3]) for line in env.render().replace("*", "").splitlines()[3:11]
    ]
    assert max(shown) == pytest.approx(slowest, abs=2e-3)


def test_pictures_of_many_environments_have_one_size():
    pytest.importorskip("PIL", reason="pictures need the extra 'data'")
    envs = native(ENV_ID, tasks=some_tasks()[:4], render_mode="rgb_array")
    observations, _ = envs.reset(seed=0)
    empty = envs.render()
    envs.step(observations["action_mask"].argmax(axis=1))
    pictures = envs.render()
    assert {picture.shape for picture in (*empty, *pictures)} == {pictures[0].shape}
    assert pictures[0].dtype == np.uint8
    for _ in range(5):
        observations, *_ = envs.step(envs.action_masks().argmax(axis=1))
    assert any((one != other).any() for one, other in zip(empty, envs.render(), strict=True))
