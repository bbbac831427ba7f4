"""Observations against figures worked out by hand."""

import dataclasses

import numpy as np
import pytest
from env_toys import play

from shardgym.envs.env import TableWiseEnv
from shardgym.envs.features import DEVICE_FEATURES, REMAINING_FEATURES, TABLE_FEATURES
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.step_memory import StepMemory
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

HISTOGRAM = (0.75, 0.25) + (0.0,) * 15

#: Table a: 1,024 bytes, 16 columns, 48 lookups x columns; b: 256 bytes, 4, 16. Devices of 2,048 and 1,024 bytes.
TASK = ShardingTask(
    (EmbeddingTable("b", 16, 4, 4.0), EmbeddingTable("a", 16, 16, 3.0, reuse_histogram=HISTOGRAM)),
    Topology(num_devices=2, memory_bytes=(2048, 1024)),
    batch_size=8,
)


def observe(actions=(), task=TASK, **settings):
    """What is observed after actions."""
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


def test_a_table_without_histogram_says_so():
    features = dict(zip(TABLE_FEATURES, observe([0])["table"], strict=True))
    assert (features["histogram_known"], features["reuse_bin_0"]) == (0, 0)


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
