"""Shard sets of devices in plans of tasks like those of suites: which tables, how many, within which memory."""

import dataclasses

import pytest

from shardgym import InputError, load_pool, load_suite
from shardgym.errors import UnknownNameError
from shardgym.tasks.task import block_bytes
from shardgym.training.sampling import Space
from shardgym.training.share_sampling import draw_share

SPACE = Space(suites=("dlrm4-gpu-v1",))
MIXED = Space(suites=("dlrm4-gpu-v1", "production-v1"), memory_bytes=2**35)


def drawn(space, role, count=30):
    return [draw_share(space, 0, role, number) for number in range(count)]


def test_draws_do_not_change():
    """What a sample of a folder is follows from its name: another draw would make a repeat of something else."""
    assert [(held.width, len(held.shards)) for held in drawn(SPACE, "oracle", 4)] == [
        (136, 11),
        (116, 12),
        (60, 15),
        (372, 17),
    ]


def test_tests_have_the_tables_of_the_other_half():
    train, test = ({table.name for table in half} for half in load_pool("synthetic-2021").split())
    for role, half in (("oracle", train), ("judge", train), ("test", test)):
        assert {shard.table.name for held in drawn(SPACE, role) for shard in held.shards} <= half
    assert drawn(SPACE, "oracle", 1) != drawn(SPACE, "judge", 1)
    learned, tested = ({s.table.name for h in drawn(MIXED, role) for s in h.shards} for role in ("oracle", "test"))
    assert not learned & tested


def test_a_set_is_a_share_of_a_task_of_one_of_the_suites():
    of_suites = {
        (task.batch_size, task.precision, task.optimizer)
        for name in MIXED.suites
        for task in (load_suite(name)[n] for n in ((0,) if name.startswith("dlrm") else (0, 1, 2)))
    }
    found = drawn(MIXED, "oracle", 40)
    assert {(held.batch_size, held.precision, held.optimizer) for held in found} == of_suites
    shards = [len(held.shards) for held in drawn(SPACE, "oracle")]
    assert 1 <= min(shards) < 59 / 4 < max(shards) < 40
    assert all(shard.table.reuse_histogram is not None for held in found for shard in held.shards)


def test_what_does_not_fit_the_memory_is_left_out():
    small = dataclasses.replace(MIXED, memory_bytes=2**26)
    for held in drawn(small, "oracle", 10):
        assert sum(block_bytes(s.num_rows, s.width, held.precision, held.optimizer) for s in held.shards) <= 2**26


def test_a_suite_that_nothing_can_be_drawn_like_is_refused():
    with pytest.raises(InputError, match="suite 'published-v1' is not drawn from pools"):
        draw_share(Space(suites=("published-v1",)), 0, "oracle", 0)
    with pytest.raises(UnknownNameError, match="dlrm4"):
        draw_share(Space(suites=("dlrm4-gpu",)), 0, "oracle", 0)
