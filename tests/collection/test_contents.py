"""Which shard sets are measured: the same for ever, train and test apart, oracle and judge apart, within memory."""

from __future__ import annotations

import dataclasses

import pytest

from shardgym.collection.contents import ContentSampler, content_digest
from shardgym.collection.measure import iterations_of
from shardgym.collection.setup import EFFORT, OVERFULL, ROLES, SETUPS
from shardgym.costs.fbgemm.content import Piece
from shardgym.pools import load_pool
from shardgym.suites import load_suite

SETUP = SETUPS["cpu"]
COUNT = 400


@pytest.fixture(scope="module")
def drawn():
    sampler = ContentSampler(SETUP, seed=0)
    return {role: [sampler.content(role, number) for number in range(COUNT)] for role in ROLES}


def names(contents):
    return {piece.table.name for content in contents for piece in content.pieces}


def test_a_sample_does_not_depend_on_what_was_drawn_before():
    late, early = ContentSampler(SETUP, seed=3), ContentSampler(SETUP, seed=3)
    for number in range(20):
        late.content("oracle", number)
    assert late.content("judge", 7) == early.content("judge", 7)
    assert ContentSampler(SETUP, seed=4).content("judge", 7) != early.content("judge", 7)


def test_published_draws_do_not_change(drawn):
    """Whoever changes a draw must raise `DRAWS` in plan.py: folders of both rules must not be mixed."""
    assert content_digest(drawn["oracle"][0])[:12] == "98188783e4d8"
    assert content_digest(drawn["test"][99])[:12] == "4daf861ed91d"


def test_oracle_and_judge_see_train_tables_only_and_test_samples_the_others(drawn):
    train, test = load_pool(SETUP.pool).split()
    trained, held_out = {t.name for t in train}, {t.name for t in test}
    assert names(drawn["oracle"]) | names(drawn["judge"]) <= trained
    assert names(drawn["test"]) <= held_out
    assert not trained & held_out


def test_no_table_of_the_suites_is_trained_on(drawn):
    suite = load_suite("dlrm4-v1")
    tested = {table.name for index in range(0, 600, 25) for table in suite[index].tables}
    assert not names(drawn["oracle"] + drawn["judge"]) & tested


def test_oracle_and_judge_share_no_shard_set(drawn):
    digests = {role: {content_digest(content) for content in drawn[role]} for role in ROLES}
    assert not digests["oracle"] & digests["judge"]


def test_shard_sets_fit_a_device_or_exceed_it_a_little(drawn):
    sizes = [4 * content.num_weights for contents in drawn.values() for content in contents]
    assert max(sizes) <= OVERFULL * SETUP.memory_bytes
    assert any(size > SETUP.memory_bytes for size in sizes)


def test_the_spread_covers_single_tables_and_crowded_devices(drawn):
    counts = [len(content.pieces) for content in drawn["oracle"]]
    assert min(counts) == 1
    assert max(counts) > 40
    assert sum(count == 1 for count in counts) > COUNT / 10
    assert sum(count > 15 for count in counts) > COUNT / 10


def test_widths_are_whole_units_and_include_uneven_cuts(drawn):
    widths = {piece.width for content in drawn["oracle"] for piece in content.pieces}
    assert all(width % 4 == 0 and 4 <= width <= 128 for width in widths)
    assert {4, 8, 16, 32, 64, 128} <= widths
    assert widths - {4, 8, 16, 32, 64, 128}


def test_some_pieces_are_row_ranges_and_some_tables_come_twice(drawn):
    pieces = [piece for content in drawn["oracle"] for piece in content.pieces]
    assert any(not piece.is_whole for piece in pieces)
    assert all(0 <= p.rows[0] < p.rows[1] <= p.table.num_embeddings for p in pieces)
    assert any(len({p.table.name for p in c.pieces}) < len(c.pieces) for c in drawn["oracle"])


def test_contents_look_like_those_of_plans(drawn):
    """Batch, precision and optimiser are the suite's; pieces are in the order that plans give them."""
    task = load_suite("dlrm4-v1")[0]
    for content in drawn["test"]:
        assert (content.batch_size, content.precision, content.optimizer) == (
            task.batch_size, task.precision, task.optimizer,
        )  # fmt: skip
        keys = [(p.table.name, p.rows, p.width) for p in content.pieces]
        assert keys == sorted(keys)


def test_small_shard_sets_get_more_steps(drawn):
    """Ten ids per sample at width 4 read 8192 * 40 = 327,680 weights a step, half the rows half of that."""
    content = next(c for c in drawn["oracle"] if len(c.pieces) == 1 and c.pieces[0].is_whole)
    table = dataclasses.replace(content.pieces[0].table, num_embeddings=100, pooling_factor=10)
    whole = content._replace(pieces=(Piece(table, (0, 100), 4),))
    half = content._replace(pieces=(Piece(table, (0, 50), 4),))
    assert (iterations_of(whole), iterations_of(half)) == (EFFORT.iterations, EFFORT.small_iterations)
