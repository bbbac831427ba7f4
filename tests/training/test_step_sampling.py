"""Which plans are measured in complete steps: the same for ever, roles apart, within limits, balanced and not."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from shardgym.costs.fbgemm.cost import CPU_OPTIMIZERS
from shardgym.tables.pools import load_pool
from shardgym.tasks.task import block_bytes
from shardgym.tasks.topology import GIB
from shardgym.training.sampling import shard_set_digest
from shardgym.training.step_sampling import DEVICES, StepSampler

ROLES = ("oracle", "judge", "test")


@pytest.fixture(scope="module")
def tasks():
    sampler = StepSampler(0)
    return {role: [sampler.task(role, number) for number in range(16)] for role in ROLES}


def held_by(task):
    """Return what all devices of all plans hold, without those that hold nothing."""
    return [held for plan in task.plans for held in plan if held is not None]


def tables_of(task, plan=0):
    return {shard.table.name for held in task.plans[plan] if held is not None for shard in held.shards}


@pytest.mark.parametrize(
    ("role", "number", "expected"),
    [
        ("oracle", 0, "974e55a79d5c"), ("judge", 1, "51fe47b22481"), ("oracle", 2, "17e368a95ebb"),
        ("oracle", 3, "9f3c4dfb4e47"), ("test", 4, "c755f2dc31e9"), ("judge", 5, "7558a0c6866f"),
        ("oracle", 6, "6011714bb075"), ("judge", 7, "4945e1725407"), ("oracle", 9, "03dad61e909d"),
        ("test", 10, "4aa8d02e5427"),
    ],
)  # fmt: skip
def test_published_plans_do_not_change(role, number, expected):
    """Whoever changes a draw must raise `STEP_DRAWS`: folders of both rules must not be mixed."""
    task = StepSampler(11).task(role, number)
    digests = "\n".join(task.digest(plan) for plan in range(len(task.plans)))
    assert hashlib.sha256(digests.encode()).hexdigest()[:12] == expected


def test_a_task_does_not_depend_on_what_was_drawn_before():
    late, early = StepSampler(3), StepSampler(3)
    for number in range(3):
        late.task("oracle", number)
    assert late.task("judge", 2) == early.task("judge", 2)
    assert late.devices("judge", 2) == len(early.task("judge", 2).plans[0])
    assert StepSampler(4).task("judge", 2) != early.task("judge", 2)


def test_roles_share_no_made_table_and_tests_no_table_at_all(tasks):
    train, test = (set(half.tables) for half in load_pool("synthetic-2021").split())
    trained, held_out = ({table.name for table in half} for half in (train, test))
    names = {
        (role, of_pool): set().union(*(tables_of(task) for task in tasks[role] if task.of_pool == of_pool))
        for role in ROLES for of_pool in (True, False)
    }  # fmt: skip
    assert all(names.values())
    assert names["oracle", True] | names["judge", True] <= trained
    assert names["test", True] <= held_out
    made = [names[role, False] for role in ROLES]
    assert sum(map(len, made)) == len(set().union(*made))
    assert not set().union(*made) & (trained | held_out)


def test_all_plans_of_a_task_have_all_columns_of_the_same_tables(tasks):
    for task in (task for role in ROLES for task in tasks[role]):
        columns = []
        for plan in task.plans:
            found = {}
            for shard in (shard for held in plan if held is not None for shard in held.shards):
                assert shard.is_whole
                found[shard.table.name] = found.get(shard.table.name, 0) + shard.width
            columns.append(found)
        assert all(found == columns[0] for found in columns)
        assert len({task.digest(plan) for plan in range(len(task.plans))}) > 1


def test_tests_have_more_plans_than_others(tasks):
    assert {len(task.plans) for task in tasks["test"]} == {6}
    assert {len(task.plans) for role in ("oracle", "judge") for task in tasks[role]} == {4}


def test_tasks_cover_devices_batches_types_and_optimisers(tasks):
    found = [task for role in ROLES for task in tasks[role]]
    held = [held_by(task)[0] for task in found]
    assert {len(task.plans[0]) for task in found} == set(DEVICES)
    assert {shard_set.precision for shard_set in held} == {"fp32", "fp16"}
    assert {shard_set.optimizer for shard_set in held} == CPU_OPTIMIZERS
    batches = [shard_set.batch_size for shard_set in held]
    assert min(batches) < 8192 < max(batches)
    usual = [(s.batch_size, s.precision, s.optimizer) == (8192, "fp32", "exact_sgd") for s in held]
    assert 0.3 < np.mean(usual) < 0.8


def test_plans_fit_into_memory_and_cost_no_more_than_a_step_may(tasks):
    for task in (task for role in ROLES for task in tasks[role]):
        first = [held for held in task.plans[0] if held is not None]
        shards = [(held, shard) for held in first for shard in held.shards]
        size = sum(block_bytes(s.num_rows, s.width, held.precision, held.optimizer) for held, s in shards)
        assert size <= (2 * GIB if task.of_pool else 2 * GIB // 3)
        assert sum(held.batch_size * s.table.pooling_factor for held, s in shards) <= 8e6
        assert len(shards) >= max(4, len(task.plans[0]))


def test_the_first_plan_is_placed_anywhere_and_the_second_is_balanced(tasks):
    def lopsided(plan):
        ids = [0.0 if held is None else sum(s.ids_per_sample * s.width for s in held.shards) for held in plan]
        return max(ids) / np.mean(ids)

    found = [task for role in ROLES for task in tasks[role]]
    assert np.mean([lopsided(task.plans[0]) for task in found]) > 1.2 * np.mean([lopsided(t.plans[1]) for t in found])
    cut = [len(t.plans[1]) and sum(len(h.shards) for h in t.plans[1] if h) > len(tables_of(t, 1)) for t in found]
    assert 0.3 < np.mean(cut) < 1


def test_a_device_has_the_digest_of_its_shard_set_alone(tasks):
    pooled = next(task for task in tasks["oracle"] if task.of_pool)
    made = next(task for task in tasks["oracle"] if not task.of_pool)
    for task in (pooled, made):
        expected = [None if h is None else shard_set_digest(h, of_pool=task.of_pool) for h in task.plans[1]]
        assert task.digests(1) == expected
