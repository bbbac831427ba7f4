"""Observations against figures worked out by hand: compact, full, timed and flat ones."""

import copy
import dataclasses

import gymnasium
import numpy as np
import pytest
from env_toys import (
    COLUMN_WISE,
    TABLE_WISE,
    halvable_task,
    make_tasks,
    native,
    play,
    random_task,
    some_actions,
    with_reuse,
)
from sums import compute_ms, even_share_ms

import shardgym
from shardgym import EmbeddingTable, Shard, ShardingTask, StepMemory, Topology
from shardgym.envs import ENV_IDS
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.envs.features import DEVICE_FEATURES, REMAINING_FEATURES, TABLE_FEATURES

HISTOGRAM = (0.75, 0.25) + (0.0,) * 15

#: Table a: 1,024 bytes, 16 columns, 48 lookups x columns; b: 256 bytes, 4, 16. Devices of 2,048 and 1,024 bytes.
TASK = ShardingTask(
    (EmbeddingTable("b", 16, 4, 4.0), EmbeddingTable("a", 16, 16, 3.0, reuse_histogram=HISTOGRAM)),
    Topology(num_devices=2, memory_bytes=(2048, 1024)),
    batch_size=8,
)


def observe(actions=(), task=TASK, **settings):
    env = TableWiseEnv(tasks=[task], **{"max_devices": 3} | settings)
    observation = play(env, actions)[-1][0] if actions else env.reset()[0]
    assert env.observation_space.contains(observation)
    return observation


def test_the_first_table_is_described_by_its_features():
    features = dict(zip(TABLE_FEATURES, observe()["table"], strict=True))
    assert features["log_rows"] == pytest.approx(4 / 40)
    assert features["log_dim"] == pytest.approx(4 / 16)
    assert features["log_pooling"] == pytest.approx(np.log(4) / np.log(1_000_001))
    assert features["share_of_largest_device"] == 0.5
    assert features["bytes_share"] == pytest.approx(1024 / 1280)
    assert features["dim_share"] == pytest.approx(16 / 20)
    assert features["lookup_share"] == pytest.approx(48 / 64)
    assert (features["histogram_known"], features["reuse_bin_0"], features["reuse_bin_1"]) == (1, 0.75, 0.25)
    assert not observe([0])["table"][TABLE_FEATURES.index("histogram_known") :].any()


def test_devices_show_what_they_hold_and_missing_ones_are_zero():
    devices = observe([0])["devices"].reshape(3, len(DEVICE_FEATURES))
    first = dict(zip(DEVICE_FEATURES, devices[0], strict=True))
    assert (first["exists"], first["free_share"], first["capacity_share"]) == (1, 0.5, 1)
    held = [first[f"{name}_share"] for name in ("bytes", "dim", "lookup", "tables")]
    assert held == pytest.approx([0.8, 0.8, 0.75, 0.5])
    assert devices[1].tolist() == [1, 1, 0.5, 0, 0, 0, 0]
    assert not devices[2].any()


def test_remaining_and_progress_count_down_to_the_end():
    seen = []
    for actions in ([], [0], [0, 1]):
        observation = observe(actions)
        seen.append([*observation["progress"], *observation["remaining"]])
    # Progress, then tables, bytes, dims, lookups left, and bytes left over bytes free (3,072, then 2,048).
    assert len(REMAINING_FEATURES) == 5
    assert seen[0] == pytest.approx([0, 1, 1, 1, 1, 1280 / 3072])
    assert seen[1] == pytest.approx([0.5, 0.5, 0.2, 0.2, 0.25, 256 / 2048])
    assert seen[2] == [1, 0, 0, 0, 0, 0]


def test_a_task_without_lookups_and_a_device_filled_to_the_byte_stay_finite():
    task = ShardingTask((EmbeddingTable("t", 16, 4, 0.0),), Topology(num_devices=1, memory_bytes=256), batch_size=8)
    settings = {"task": task, "order": "lookup", "max_devices": 1}
    observe(**settings)
    assert observe([0], **settings)["devices"].tolist() == [1, 0, 1, 1, 1, 0, 1]


def test_a_device_whose_memory_is_all_reserved_is_full():
    topology = dataclasses.replace(TASK.topology, memory_bytes=(2**20, 1024))
    reserved = dataclasses.replace(TASK, topology=topology, step_memory=StepMemory(reserved_bytes=(0, 1024)))
    assert reserved.capacity_bytes[1] == 0
    devices = dict(zip(DEVICE_FEATURES, observe(task=reserved)["devices"].reshape(3, -1).T, strict=True))
    assert devices["exists"].tolist() == [1, 1, 0]
    assert devices["free_share"].tolist() == [1, 0, 0]
    nothing = dataclasses.replace(TASK, step_memory=StepMemory(reserved_bytes=2**40))
    assert all(np.isfinite(values).all() for values in observe(task=nothing).values())


def test_observations_do_not_share_memory_with_the_environment():
    env = ColumnWiseEnv(tasks=[halvable_task([16, 4])], observation="full")
    first, _ = env.reset()
    kept = {name: values.copy() for name, values in first.items()}
    for values in first.values():
        values[:] = 0
    again, _ = env.reset()
    assert all(np.array_equal(again[name], kept[name]) for name in kept)


@pytest.fixture(params=["roofline", "simulator"])
def cost(request, simulator):
    return simulator if request.param == "simulator" else shardgym.make_cost("roofline")


def expected(cost, task, placed, waiting, max_devices):
    """Return the times by the interface for searches; `placed` are pairs of a shard and a device."""
    held = [[shard for shard, device in placed if device == number] for number in range(task.num_devices)]
    times = np.zeros((max_devices, 2))
    times[: task.num_devices] = compute_ms(cost, task, held).sum(axis=1)[:, None]
    if waiting is not None:
        times[: task.num_devices, 1] = compute_ms(cost, task, [[*shards, waiting] for shards in held]).sum(axis=1)
    return (times / even_share_ms(cost, task)).ravel()


def test_times_of_whole_tables(cost):
    task = random_task(np.random.default_rng(3), 5, 3)
    env = TableWiseEnv(tasks=[task], cost=cost, observation="timed", order="task", max_devices=4)
    observation, _ = env.reset(seed=0)
    placed = []
    for table, device in zip((*task.tables, None), (2, 0, 2, 1, 0, 0), strict=True):
        waiting = None if table is None else Shard.whole(table, 0)
        np.testing.assert_allclose(observation["times"], expected(cost, task, placed, waiting, 4), rtol=1e-5)
        if waiting is not None:
            observation, *_ = env.step(device)
            placed.append((waiting, device))


def test_times_of_halves(cost):
    task = with_reuse(halvable_task([16, 8]))
    env = ColumnWiseEnv(tasks=[task], cost=cost, observation="full_timed", order="task")
    env.reset(seed=0)
    halves = [Shard("t0", (0, 64), columns, 0) for columns in ((0, 8), (8, 16))]
    seen = [env.step(action)[0]["times"] for action in (2, 1)]
    np.testing.assert_allclose(seen[0], expected(cost, task, [], halves[0], 2), rtol=1e-5)
    np.testing.assert_allclose(seen[1], expected(cost, task, [(halves[0], 1)], halves[1], 2), rtol=1e-5)


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_a_device_is_priced_once_with_each_shard(env_id, cost, monkeypatch):
    """Not again when it gets the shard, nor for dense rewards, nor by a copy of the environment."""
    priced = []
    additive = type(cost.additive())
    exact_compute_ms = additive.exact_compute_ms
    monkeypatch.setattr(
        additive, "exact_compute_ms", lambda self, sums: (priced.append(sums), exact_compute_ms(self, sums))[1]
    )
    task = random_task(np.random.default_rng(4), 6, 3)
    env = gymnasium.make(env_id, tasks=[task], cost=cost, observation="timed", reward="dense").unwrapped
    env.reset(seed=0)
    for device in (1, 0, 1, 2, 0):
        forked = copy.deepcopy(env)
        priced.clear()
        observation, *_ = env.step(device)
        np.testing.assert_array_equal(forked.step(device)[0]["times"], observation["times"])
        assert [sums.shape[:-1] for sums in priced] == [(1, 3)] * 2


def assert_flat(flat, observation, names):
    parts = [observation[name] for name in sorted(observation) if name != "action_mask"]
    assert list(flat) == list(names)
    assert flat[names[0]].dtype == np.float32
    assert np.array_equal(flat[names[0]], np.concatenate(parts, axis=-1))
    assert np.array_equal(flat[names[1]], observation["action_mask"])


@pytest.mark.parametrize(
    ("env_id", "names"), [(TABLE_WISE, ("obs", "mask")), (COLUMN_WISE, ("observations", "action_mask"))]
)
def test_flat_observations_are_all_numbers_and_the_mask(env_id, names):
    settings = {"tasks": make_tasks(), "observation": "full_timed", "autoreset_mode": "SameStep"}
    envs, twins = native(env_id, flat=names, **settings), native(env_id, **settings)
    rng, ends = np.random.default_rng(0), 0
    (flat, _), (observations, _) = envs.reset(seed=1), twins.reset(seed=1)
    for _ in range(30):
        assert_flat(flat, observations, names)
        assert flat in envs.observation_space
        actions = some_actions(rng, envs.action_masks(), illegal=0)
        (flat, *_, infos), (observations, *_, others) = envs.step(actions), twins.step(actions)
        for row in np.flatnonzero(infos.get("_final_obs", [])):
            assert_flat(infos["final_obs"][row], others["final_obs"][row], names)
            ends += 1
    assert ends > 3
