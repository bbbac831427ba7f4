"""Counts, order, repeats and names of measurements."""

from __future__ import annotations

import hashlib

import pytest

from shardgym.errors import InputError
from shardgym.training.schedule import SampleId, schedule
from shardgym.training.settings import preset_counts

COUNTS = {"compute": {"oracle": 100, "judge": 40, "test": 20}, "steps": {"oracle": 20, "judge": 6, "test": 4}}
#: Of all plans with repeats: four of a task, six of one for testing.
PLANS = 4 * (20 + 3) + 4 * (6 + 1) + 6 * (4 + 1)


@pytest.fixture(scope="module")
def blocks():
    return schedule(COUNTS, 0.15, seed=0)


def samples(blocks):
    return [sample for block in blocks for sample in (*block.shard_sets, *block.plans)]


def test_everything_is_measured_once_and_its_share_twice(blocks):
    found = samples(blocks)
    assert len(found) == len(set(found)) == 160 + (15 + 6 + 3) + PLANS
    assert {s for s in found if s.repeat} <= {s._replace(repeat=1) for s in found}


def test_the_order_is_random_and_the_same_for_a_seed(blocks):
    shard_sets = [sample for block in blocks for sample in block.shard_sets]
    assert shard_sets != sorted(shard_sets)
    assert {sample.role for sample in shard_sets[:40]} == {"oracle", "judge", "test"}
    assert schedule(COUNTS, 0.15, seed=0) == blocks
    assert schedule(COUNTS, 0.15, seed=1) != blocks


def test_a_block_ends_with_the_plans_of_one_task(blocks):
    assert len(blocks) == (20 + 3) + (6 + 1) + (4 + 1)
    for block in blocks:
        assert len({(sample.role, sample.task, sample.repeat) for sample in block.plans}) == 1
        assert [sample.plan for sample in block.plans] == list(range(6 if block.plans[0].role == "test" else 4))
    sizes = [len(block.shard_sets) for block in blocks]
    assert max(sizes) - min(sizes) <= 1


def test_without_steps_there_is_one_block_of_shard_sets():
    (block,) = schedule({**COUNTS, "steps": {"oracle": 0}}, 0.0, seed=0)
    assert (len(block.shard_sets), block.plans) == (160, ())


def test_the_order_of_the_survey_does_not_change():
    """A run that was interrupted by an older version continues in the same order."""
    survey = schedule(preset_counts("survey", "cpu", None, None), 0.15, seed=0)
    order = "\n".join(map(str, samples(survey)))
    assert hashlib.sha256(order.encode()).hexdigest().startswith("2c4b07502d0f72ad")


def test_asking_for_more_keeps_the_samples_that_were_there(blocks):
    more = schedule({kind: {r: 2 * n for r, n in roles.items()} for kind, roles in COUNTS.items()}, 0.15, 0)
    assert set(samples(blocks)) <= set(samples(more))


def test_names_are_parsed_back():
    sample = SampleId("steps", "judge", 17, 1)
    assert str(sample) == "steps/judge/17/1"
    assert SampleId.parse(str(sample)) == sample
    assert (sample.task, sample.plan) == (4, 1)
    with pytest.raises(InputError, match="sample 'steps/jury/1/0': expected KIND/ROLE/NUMBER/REPEAT"):
        SampleId.parse("steps/jury/1/0")
