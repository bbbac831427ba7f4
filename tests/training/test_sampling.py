"""What is drawn for samples: the same for ever, axes apart from each other, roles apart, within limits."""

import dataclasses
import itertools

import numpy as np
import pytest

from shardgym import InputError, UniformIds, ZipfIds, load_pool, load_suite
from shardgym.costs.fbgemm.cost import CPU_OPTIMIZERS
from shardgym.errors import UnknownNameError
from shardgym.tasks.task import OPTIMIZER_STATE, block_bytes
from shardgym.tasks.topology import GIB
from shardgym.training.sampling import ROLES, Space, draw_shard_set, draw_share
from shardgym.training.step_sampling import DEVICES, draw_plans, num_devices

SMALL = Space(batch=(256, 1024), pooling=(0.05, 20), rows=(1, 10_000), shards=(1, 12), memory_bytes=2**26)
SHARES = Space(suites=("dlrm4-gpu-v1",))
MIXED = Space(suites=("dlrm4-gpu-v1", "production-v1"), memory_bytes=2**35)


def draw_shares(space, role, count=30):
    return [draw_share(space, 0, role, number) for number in range(count)]


@pytest.fixture(scope="module")
def shard_sets():
    return [draw_shard_set(Space(shards=(1, 20)), 0, "oracle", number) for number in range(80)]


@pytest.fixture(scope="module")
def tasks():
    return {role: [draw_plans(0, role, number) for number in range(16)] for role in ROLES}


def tables_of(plans):
    return {shard.table.name: shard.table for plan in plans for held in plan if held for shard in held.shards}


def test_draws_do_not_change(shard_sets, tasks):
    """What a sample of a folder is follows from its name: another draw would make a repeat of something else."""
    drawn = [(held.batch_size, held.precision, held.width, len(held.shards)) for held in shard_sets[:4]]
    assert drawn == [(512, "fp16", 16, 3), (4096, "fp16", 620, 7), (8192, "fp16", 28, 4), (256, "fp32", 8, 1)]
    widths = [[held and held.width for held in plan] for plan in tasks["judge"][2][:2]]
    assert widths == [[88, 12, 244, 68, 88, 264, None, None], [36, 40, 180, 48, 112, 124, 60, 164]]
    shares = [(held.width, len(held.shards)) for held in draw_shares(SHARES, "oracle", 4)]
    assert shares == [(136, 11), (116, 12), (60, 15), (372, 17)]


def test_every_axis_reaches_near_its_ends_and_stays_within(shard_sets):
    shards = [shard for held in shard_sets for shard in held.shards]
    for values, low, high in (
        ([held.batch_size for held in shard_sets], 256, 65_536),
        ([shard.table.num_embeddings for shard in shards], 1, 1e8),
        ([shard.table.pooling_factor for shard in shards], 0.05, 500),
        ([shard.width for shard in shards], 4, 512),
        ([len(held.shards) for held in shard_sets], 1, 20),
    ):
        assert low <= min(values) <= 3 * low
        assert high / 3 <= max(values) <= high
    assert {held.precision for held in shard_sets} == {"fp32", "fp16"}
    assert {held.optimizer for held in shard_sets} == set(OPTIMIZER_STATE)
    assert all(shard.width % 4 == 0 for shard in shards)


def test_rows_pooling_and_ids_do_not_go_together(shard_sets):
    tables = list({shard.table.name: shard.table for found in shard_sets for shard in found.shards}.values())
    columns = np.array([
        (np.log(t.num_embeddings), np.log(t.pooling_factor), isinstance(t.ids, UniformIds),
         isinstance(t.ids, ZipfIds) and t.ids.lengths == "poisson")
        for t in tables
    ])  # fmt: skip
    found = np.corrcoef(columns.T)
    assert np.abs(found[[0, 0, 1, 0, 1], [1, 2, 2, 3, 3]]).max() < 4 / np.sqrt(len(tables))
    assert (columns[:, 2:].mean(axis=0) > 0.2).all()


def test_sets_keep_to_the_memory_and_some_hold_a_table_several_times(shard_sets):
    several = 0
    for held in shard_sets:
        assert sum(block_bytes(s.num_rows, s.width, held.precision, held.optimizer) for s in held.shards) <= 3 * GIB
        several += len({shard.table.name for shard in held.shards}) < len(held.shards)
    assert several >= 5
    with pytest.raises(InputError, match="no sample fits the limits"):
        draw_shard_set(Space(rows=(10**8, 10**8), pooling=(1, 1), shards=(1, 1), memory_bytes=2**20), 0, "oracle", 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": [300, 600]}, "batch: expected powers of two"),
        ({"width": [4, 6]}, "width: expected multiples of 4"),
        ({"rows": [100, 10]}, "rows: expected low <= high"),
        ({"optimizer": ["sgd"]}, "optimizer"),
        ({"row": [1, 10]}, "row"),
    ],
)
def test_what_is_no_space_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Space.from_dict(changes)


def test_no_table_of_tests_is_learned_from_and_made_tables_are_of_one_role(tasks):
    train, test = ({table.name for table in half} for half in load_pool("synthetic-2021").split())
    names = {role: {name for plans in tasks[role] for name in tables_of(plans)} for role in ROLES}
    assert names["test"] & test
    assert not names["test"] & train
    for role in ("oracle", "judge"):
        assert names[role] & train
        assert not names[role] & test
    assert names["oracle"] & names["judge"] <= train
    sets = [{s.table.name for n in range(3) for s in draw_shard_set(SMALL, 0, role, n).shards} for role in ROLES]
    assert sum(map(len, sets)) == len(set().union(*sets))


def test_all_plans_of_a_task_have_all_columns_of_the_same_tables(tasks):
    for role, number in itertools.product(ROLES, range(16)):
        plans = tasks[role][number]
        assert len(plans) == (6 if role == "test" else 4)
        assert {len(plan) for plan in plans} == {num_devices(0, role, number)}
        columns = []
        for plan in plans:
            found = {}
            for shard in (shard for held in plan if held for shard in held.shards):
                assert shard.is_whole
                found[shard.table.name] = found.get(shard.table.name, 0) + shard.width
            columns.append(found)
        assert all(found == columns[0] for found in columns)
        assert any(plan != plans[0] for plan in plans)


def test_tasks_cover_devices_batches_types_and_optimisers_within_limits(tasks):
    found = [plans for role in ROLES for plans in tasks[role]]
    held = [next(held for held in plans[0] if held) for plans in found]
    assert {len(plans[0]) for plans in found} == set(DEVICES)
    assert {shard_set.precision for shard_set in held} == {"fp32", "fp16"}
    assert {shard_set.optimizer for shard_set in held} == CPU_OPTIMIZERS
    batches = [shard_set.batch_size for shard_set in held]
    assert min(batches) < 8192 < max(batches)
    usual = [(s.batch_size, s.precision) == (8192, "fp32") and s.optimizer != "adagrad" for s in held]
    assert 0.3 < np.mean(usual) < 0.8
    for plans, one in zip(found, held, strict=True):
        shards = [shard for held in plans[0] if held for shard in held.shards]
        assert sum(block_bytes(s.num_rows, s.width, one.precision, one.optimizer) for s in shards) <= 2 * GIB
        assert sum(one.batch_size * s.table.pooling_factor for s in shards) <= 8e6
        assert len(shards) >= max(4, len(plans[0]))


def test_the_first_plan_is_placed_anywhere_and_the_second_is_balanced(tasks):
    def lopsided(plan):
        ids = [sum(s.ids_per_sample * s.width for s in held.shards) if held else 0.0 for held in plan]
        return max(ids) / np.mean(ids)

    found = [plans for role in ROLES for plans in tasks[role]]
    assert np.mean([lopsided(plans[0]) for plans in found]) > 1.2 * np.mean([lopsided(plans[1]) for plans in found])
    cut = [sum(len(held.shards) for held in plans[1] if held) > len(tables_of(plans)) for plans in found]
    assert 0.3 < np.mean(cut) < 1


def test_shares_for_tests_have_the_tables_of_the_other_half():
    train, test = ({table.name for table in half} for half in load_pool("synthetic-2021").split())
    for role, half in (("oracle", train), ("judge", train), ("test", test)):
        assert {shard.table.name for held in draw_shares(SHARES, role) for shard in held.shards} <= half
    assert draw_shares(SHARES, "oracle", 1) != draw_shares(SHARES, "judge", 1)
    known, tested = ({s.table.name for h in draw_shares(MIXED, role) for s in h.shards} for role in ("oracle", "test"))
    assert not known & tested


def test_a_share_is_of_a_task_of_one_of_the_suites():
    of_suites = {
        (task.batch_size, task.precision, task.optimizer)
        for name in MIXED.suites
        for task in (load_suite(name)[n] for n in ((0,) if name.startswith("dlrm") else (0, 1, 2)))
    }
    found = draw_shares(MIXED, "oracle", 40)
    assert {(held.batch_size, held.precision, held.optimizer) for held in found} == of_suites
    shards = [len(held.shards) for held in draw_shares(SHARES, "oracle")]
    assert 1 <= min(shards) < 59 / 4 < max(shards) < 40
    assert all(shard.table.reuse_histogram is not None for held in found for shard in held.shards)


def test_what_does_not_fit_the_memory_is_left_out():
    small = dataclasses.replace(MIXED, memory_bytes=2**26)
    for held in draw_shares(small, "oracle", 10):
        assert sum(block_bytes(s.num_rows, s.width, held.precision, held.optimizer) for s in held.shards) <= 2**26


def test_a_suite_that_nothing_can_be_drawn_like_is_refused():
    with pytest.raises(InputError, match="suite 'published-v1' is not drawn from pools, so it cannot be sampled"):
        draw_share(Space(suites=("published-v1",)), 0, "oracle", 0)
    with pytest.raises(UnknownNameError, match="dlrm4"):
        draw_share(Space(suites=("dlrm4-gpu",)), 0, "oracle", 0)
