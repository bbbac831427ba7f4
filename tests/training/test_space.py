"""Wide collections: axes that are drawn apart from each other, within their ends, and collected with toys."""

from __future__ import annotations

import collection_toys
import numpy as np
import pytest

from shardgym.cli import main
from shardgym.errors import InputError, UnknownNameError
from shardgym.tables.table import UniformIds, ZipfIds
from shardgym.tasks.task import OPTIMIZER_STATE, block_bytes
from shardgym.training import collect, finish
from shardgym.training.settings import PLAN_DEVICES, PLANS_PER_TASK, Space
from shardgym.training.space_sampling import SpaceSampler

SMALL = Space(batch=(256, 1024), pooling=(0.05, 20), rows=(1, 10_000), shards=(1, 12), memory_bytes=2**26)


@pytest.fixture(scope="module")
def shard_sets():
    sampler = SpaceSampler(Space(shards=(1, 20)), seed=0)
    return [sampler.shard_set("oracle", number) for number in range(80)]


def test_every_axis_reaches_near_its_ends_and_stays_within(shard_sets):
    shards = [shard for shard_set in shard_sets for shard in shard_set.shards]
    for values, low, high in (
        ([shard_set.batch_size for shard_set in shard_sets], 256, 65_536),
        ([shard.table.num_embeddings for shard in shards], 1, 1e8),
        ([shard.table.pooling_factor for shard in shards], 0.05, 500),
        ([shard.width for shard in shards], 4, 512),
        ([len(shard_set.shards) for shard_set in shard_sets], 1, 20),
    ):
        assert low <= min(values) <= 3 * low
        assert high / 3 <= max(values) <= high
    assert {shard_set.precision for shard_set in shard_sets} == {"fp32", "fp16"}
    assert {shard_set.optimizer for shard_set in shard_sets} == set(OPTIMIZER_STATE)
    assert all(shard.width % 4 == 0 for shard in shards)


def test_rows_pooling_and_ids_do_not_go_together(shard_sets):
    tables = list({shard.table.name: shard.table for found in shard_sets for shard in found.shards}.values())
    rows = np.log([table.num_embeddings for table in tables])
    pooling = np.log([table.pooling_factor for table in tables])
    uniform = np.array([isinstance(table.ids, UniformIds) for table in tables])
    recorded = np.array([isinstance(table.ids, ZipfIds) and table.ids.lengths == "poisson" for table in tables])
    limit = 4 / np.sqrt(len(tables))
    for first, second in ((rows, pooling), (rows, uniform), (pooling, uniform), (rows, recorded), (pooling, recorded)):
        assert abs(np.corrcoef(first, second)[0, 1]) < limit
    assert 0.2 < uniform.mean() < 0.5
    assert 0.2 < recorded.mean() < 0.5


def test_sets_keep_to_the_memory_and_some_hold_a_table_several_times(shard_sets):
    several = 0
    for shard_set in shard_sets:
        sizes = [block_bytes(s.num_rows, s.width, shard_set.precision, shard_set.optimizer) for s in shard_set.shards]
        assert sum(sizes) <= Space().memory_bytes
        several += len({shard.table.name for shard in shard_set.shards}) < len(shard_set.shards)
    assert several >= 5


def test_oracle_and_judge_have_no_table_in_common_and_seeds_differ():
    names = [
        {s.table.name for n in range(5) for s in SpaceSampler(SMALL, seed).shard_set(role, n).shards}
        for role, seed in (("oracle", 0), ("judge", 0), ("oracle", 1))
    ]
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    again = SpaceSampler(SMALL, 0)
    assert {s.table.name for n in range(5) for s in again.shard_set("oracle", n).shards} == names[0]


def test_transfer_samples_are_of_the_pool_of_2022():
    shard_set = SpaceSampler(SMALL, 0).shard_set("transfer", 3)
    assert all(shard.table.name.startswith("u") for shard in shard_set.shards)


def test_plans_of_a_task_have_the_same_tables_and_balanced_devices():
    sampler = SpaceSampler(SMALL, 0)

    def plan(number):
        return [sampler.shard_set("plans", number * PLAN_DEVICES + device) for device in range(PLAN_DEVICES)]

    def tables(devices):
        return {shard.table.name for device in devices for shard in device.shards}

    first, moved, other = plan(0), plan(5), plan(PLANS_PER_TASK)
    assert tables(first) == tables(moved)
    assert not tables(first) & tables(other)
    columns = dict.fromkeys(tables(first), 0)
    for device in first:
        for shard in device.shards:
            columns[shard.table.name] += shard.width
    assert columns == {
        name: sum(shard.width for device in moved for shard in device.shards if shard.table.name == name)
        for name in columns
    }
    assert first != moved


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ("batch=300:600", InputError, "batch: expected powers of two"),
        ("width=4:6", InputError, "width: expected multiples of 4"),
        ("rows=1:2.5", InputError, "rows=1:2.5: expected whole numbers"),
        ("rows=100:10", InputError, "rows: expected the smaller end first"),
        ("rows", InputError, "rows=: expected LOW:HIGH"),
        ("pooling=a:b", InputError, "pooling=a:b: expected LOW:HIGH"),
        ("optimizer=adam,sgd", UnknownNameError, "unknown optimizer 'sgd'"),
        ("row=1:10", UnknownNameError, "unknown axis 'row': did you mean rows"),
    ],
)
def test_options_that_are_no_space_are_refused(option, error, message):
    with pytest.raises(error, match=message):
        Space.of_options([option])


def test_options_change_single_axes():
    space = Space.of_options(["rows=1:1e4", "batch=512", "precision=fp16", "pooling=0.5", "memory_bytes=2e9"])
    assert (space.rows, space.batch, space.precision, space.pooling) == ((1, 10_000), (512, 512), ("fp16",), (0.5, 0.5))
    assert (space.width, space.memory_bytes) == (Space().width, 2_000_000_000)


def test_a_space_without_samples_is_an_error():
    with pytest.raises(InputError, match="no sample keeps to the limits"):
        SpaceSampler(Space(rows=(10**8, 10**8), shards=(1, 1), memory_bytes=2**20), 0).shard_set("oracle", 0)


@pytest.fixture
def toys(monkeypatch):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    return collection_toys.install(monkeypatch)


def test_a_killed_wide_collection_continues_and_equals_one_in_one_go(toys, tmp_path):
    pool, _ = toys
    arguments = {"preset": "oracle", "compute": 30, "steps": 2, "space": SMALL}
    pool.ends_after = 7
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "killed", **arguments)
    pool.ends_after = None
    collect(tmp_path / "killed", **arguments)
    collect(tmp_path / "whole", **arguments)
    from shardgym.costs.simulator.sample_files import read_compute

    one, other = (read_compute(tmp_path / name) for name in ("killed", "whole"))
    assert one.labels.content.tolist() == other.labels.content.tolist()
    assert set(one.optimizer) == {"exact_sgd", "rowwise_adagrad", "adagrad"}
    assert set(one.labels.role) >= {"oracle", "test"}
    assert finish(tmp_path / "whole").counts["compute"].keys() == set(one.labels.role)
    with pytest.raises(InputError, match="space"):
        collect(tmp_path / "whole", preset="oracle", compute=30, steps=2)


def test_the_command_takes_axes_for_wide_presets_alone(toys, tmp_path, capsys):
    axes = ["--axis", "batch=256", "--axis", "rows=1:1000", "--axis", "pooling=0.1:4", "--axis", "shards=1:4"]
    small = ["--compute", "8", "--steps", "1"]
    assert main(["collect", "--out", str(tmp_path / "a"), "--preset", "judge", *small, *axes]) == 0
    text = capsys.readouterr().out
    assert "judge 9" in text
    assert "adam was left out: FBGEMM has no kernel of it for the CPU" in text
    assert main(["collect", "--out", str(tmp_path / "c"), "--preset", "judge", "--axis", "optimizer=adam"]) == 2
    assert "optimizer adam: FBGEMM has no kernel" in capsys.readouterr().err
    assert main(["collect", "--out", str(tmp_path / "b"), "--preset", "quick", *small, *axes]) == 2
    assert "a space goes with preset oracle or judge" in capsys.readouterr().err
