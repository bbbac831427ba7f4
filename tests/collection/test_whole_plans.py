"""Complete plans for checking simulators: whole, feasible, of test tables, the same for ever."""

from __future__ import annotations

from collections import Counter

from shardgym.collection.contents import ContentSampler
from shardgym.collection.setup import PRESETS, SETUPS
from shardgym.collection.whole_plans import DEVICES, PLANS_PER_TASK
from shardgym.pools import load_pool

PLANS = 30


def plans_of(sampler):
    return [[sampler.content("plans", plan * DEVICES + device) for device in range(DEVICES)] for plan in range(PLANS)]


def names(plan):
    return sorted(piece.table.name for content in plan for piece in content.pieces)


def test_plans_of_a_task_place_the_same_tables_whole_and_once():
    plans = plans_of(ContentSampler(SETUPS["cuda"], seed=0))
    for plan in plans:
        assert max(Counter(names(plan)).values()) == 1
        assert all(piece.is_whole for content in plan for piece in content.pieces)
    tasks = {tuple(names(plan)) for plan in plans}
    assert len(tasks) == 2
    assert names(plans[0]) == names(plans[PLANS_PER_TASK - 1]) != names(plans[PLANS_PER_TASK])
    assert 10 <= len(names(plans[0])) <= 59


def test_every_device_holds_something_and_has_the_memory():
    for device in ("cpu", "cuda"):
        setup = SETUPS[device]
        for plan in plans_of(ContentSampler(setup, seed=1)):
            assert all(0 < 4 * content.num_weights <= setup.memory_bytes for content in plan)


def test_tables_are_of_the_test_half():
    test = {table.name for table in load_pool("synthetic-2021").split()[1]}
    assert all(set(names(plan)) <= test for plan in plans_of(ContentSampler(SETUPS["cpu"], seed=0)))


def test_plans_differ_and_are_from_balanced_to_lopsided():
    plans = plans_of(ContentSampler(SETUPS["cpu"], seed=0))
    assert len({tuple(plan) for plan in plans}) == PLANS
    shares = [max(content.width for content in plan) / sum(content.width for content in plan) for plan in plans]
    assert min(shares) < 0.35
    assert max(shares) > 0.45


def test_a_plan_does_not_depend_on_which_was_asked_for_before():
    fresh, used = ContentSampler(SETUPS["cpu"], seed=0), ContentSampler(SETUPS["cpu"], seed=0)
    used.content("plans", 99)
    assert used.content("plans", 42) == fresh.content("plans", 42)
    assert ContentSampler(SETUPS["cpu"], seed=1).content("plans", 42) != fresh.content("plans", 42)


def test_the_survey_of_a_gpu_has_twenty_thousand_shard_sets_and_two_hundred_plans():
    counts = PRESETS["survey"].counts["cuda"]["compute"]
    assert counts["plans"] == 200 * DEVICES
    assert sum(counts.values()) - counts["plans"] >= 20_000
