"""Which samples are measured: the same for ever, train and test apart, oracle and judge apart, within memory."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter

import pytest

from shardgym.costs.fbgemm.jobs import ShardSpec
from shardgym.tables.pools import load_pool
from shardgym.tasks.suites import load_suite
from shardgym.training.measuring import iterations_of
from shardgym.training.sampling import PoolSampler, shard_set_digest
from shardgym.training.settings import OVERFULL, PLAN_DEVICES, PLANS_PER_TASK, ROLES, SETUPS, STEPS

SETUP = SETUPS["cpu"]
COUNT = 400
PLANS = 30


@pytest.fixture(scope="module")
def drawn():
    sampler = PoolSampler(SETUP, seed=0)
    return {role: [sampler.shard_set(role, number) for number in range(COUNT)] for role in ROLES}


def names(contents):
    return {piece.table.name for content in contents for piece in content.shards}


def test_a_sample_does_not_depend_on_what_was_drawn_before():
    late, early = PoolSampler(SETUP, seed=3), PoolSampler(SETUP, seed=3)
    for number in range(20):
        late.shard_set("oracle", number)
    assert late.shard_set("judge", 7) == early.shard_set("judge", 7)
    assert PoolSampler(SETUP, seed=4).shard_set("judge", 7) != early.shard_set("judge", 7)


def digest_of(digests):
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("device", "role", "expected"),
    [
        ("cpu", "oracle", "4d99fc79e13d"),
        ("cpu", "judge", "7965b9956d1e"),
        ("cpu", "test", "59c2d444a745"),
        ("cpu", "plans", "3ad1fae89161"),
        ("cuda", "oracle", "3dd3ca718b7f"),
        ("cuda", "judge", "d24c4dcda527"),
        ("cuda", "test", "40233dfabd26"),
        ("cuda", "plans", "14fed14f486c"),
    ],
)
def test_published_shard_sets_do_not_change(device, role, expected):
    """Whoever changes a draw must raise `DRAWS` in sampling.py: folders of both rules must not be mixed."""
    sampler = PoolSampler(SETUPS[device], seed=0)
    assert digest_of(shard_set_digest(sampler.shard_set(role, number)) for number in range(80)) == expected


def test_oracle_and_judge_see_train_tables_only_and_test_samples_the_others(drawn):
    train, test = load_pool(SETUP.pool).split()
    trained, held_out = {t.name for t in train}, {t.name for t in test}
    assert names(drawn["oracle"]) | names(drawn["judge"]) <= trained
    assert names(drawn["test"]) <= held_out
    assert not trained & held_out


def test_oracle_and_judge_share_no_shard_set(drawn):
    digests = {role: {shard_set_digest(content) for content in drawn[role]} for role in ROLES}
    assert not digests["oracle"] & digests["judge"]


def test_shard_sets_fit_a_device_or_exceed_it_a_little(drawn):
    sizes = [4 * content.num_weights for contents in drawn.values() for content in contents]
    assert max(sizes) <= OVERFULL * SETUP.memory_bytes
    assert any(size > SETUP.memory_bytes for size in sizes)


def test_the_spread_covers_single_tables_and_crowded_devices(drawn):
    counts = [len(content.shards) for content in drawn["oracle"]]
    assert min(counts) == 1
    assert max(counts) > 40
    assert sum(count == 1 for count in counts) > COUNT / 10
    assert sum(count > 15 for count in counts) > COUNT / 10


def test_some_pieces_are_row_ranges_and_some_tables_come_twice(drawn):
    pieces = [piece for content in drawn["oracle"] for piece in content.shards]
    assert any(not piece.is_whole for piece in pieces)
    assert all(0 <= p.rows[0] < p.rows[1] <= p.table.num_embeddings for p in pieces)
    assert any(len({p.table.name for p in c.shards}) < len(c.shards) for c in drawn["oracle"])


def test_contents_look_like_those_of_plans(drawn):
    """Batch, precision and optimiser are the suite's; pieces are in the order that plans give them."""
    task = load_suite("dlrm4-v1")[0]
    for content in drawn["test"]:
        assert (content.batch_size, content.precision, content.optimizer) == (
            task.batch_size, task.precision, task.optimizer,
        )  # fmt: skip
        keys = [(p.table.name, p.rows, p.width) for p in content.shards]
        assert keys == sorted(keys)


def test_small_shard_sets_get_more_steps(drawn):
    """Ten ids per sample at width 4 read 8192 * 40 = 327,680 weights a step, half the rows half of that."""
    content = next(c for c in drawn["oracle"] if len(c.shards) == 1 and c.shards[0].is_whole)
    table = dataclasses.replace(content.shards[0].table, num_embeddings=100, pooling_factor=10)
    whole = content._replace(shards=(ShardSpec(table, (0, 100), 4),))
    half = content._replace(shards=(ShardSpec(table, (0, 50), 4),))
    assert (iterations_of(whole), iterations_of(half)) == (STEPS.iterations, STEPS.small_iterations)


def plans_of(sampler):
    return [
        [sampler.shard_set("plans", plan * PLAN_DEVICES + device) for device in range(PLAN_DEVICES)]
        for plan in range(PLANS)
    ]


def tables_of(plan):
    return sorted(piece.table.name for content in plan for piece in content.shards)


def test_plans_of_a_task_place_the_same_tables_whole_and_once():
    plans = plans_of(PoolSampler(SETUPS["cuda"], seed=0))
    for plan in plans:
        assert max(Counter(tables_of(plan)).values()) == 1
        assert all(piece.is_whole for content in plan for piece in content.shards)
    tasks = {tuple(tables_of(plan)) for plan in plans}
    assert len(tasks) == 2
    assert tables_of(plans[0]) == tables_of(plans[PLANS_PER_TASK - 1]) != tables_of(plans[PLANS_PER_TASK])
    assert 10 <= len(tables_of(plans[0])) <= 59


def test_every_device_holds_something_and_has_the_memory():
    for device in ("cpu", "cuda"):
        setup = SETUPS[device]
        for plan in plans_of(PoolSampler(setup, seed=1)):
            assert all(0 < 4 * content.num_weights <= setup.memory_bytes for content in plan)


def test_plans_differ_and_are_from_balanced_to_lopsided():
    plans = plans_of(PoolSampler(SETUPS["cpu"], seed=0))
    assert len({tuple(plan) for plan in plans}) == PLANS
    shares = [max(content.width for content in plan) / sum(content.width for content in plan) for plan in plans]
    assert min(shares) < 0.35
    assert max(shares) > 0.45
