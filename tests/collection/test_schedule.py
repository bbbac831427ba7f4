"""Counts, order, repeats and names of measurements."""

from __future__ import annotations

import pytest

from shardgym.collection.schedule import Entry, devices_of, schedule
from shardgym.collection.setup import apportion, preset_counts
from shardgym.errors import InputError, UnknownNameError

COUNTS = {"compute": {"oracle": 100, "judge": 40, "test": 20}, "comm": {"oracle": 20, "judge": 6, "test": 4}}
DEVICES = (2, 3)


@pytest.fixture(scope="module")
def blocks():
    return schedule(COUNTS, 0.15, DEVICES, seed=0)


def entries(blocks):
    return [entry for block in blocks for entry in (*block.compute, *block.comm)]


def test_everything_is_measured_once_and_its_share_twice(blocks):
    found = entries(blocks)
    assert len(found) == len(set(found)) == 160 + (15 + 6 + 3) + 30 + (3 + 1 + 1)
    assert {e for e in found if e.repeat} <= {e._replace(repeat=1) for e in found}


def test_the_order_is_random_and_the_same_for_a_seed(blocks):
    compute = [entry for block in blocks for entry in block.compute]
    assert compute != sorted(compute)
    assert {entry.role for entry in compute[:40]} == {"oracle", "judge", "test"}
    assert schedule(COUNTS, 0.15, DEVICES, seed=0) == blocks
    assert schedule(COUNTS, 0.15, DEVICES, seed=1) != blocks


def test_a_block_exchanges_over_one_number_of_devices(blocks):
    assert {block.devices for block in blocks} == {2, 3}
    for block in blocks:
        assert all(devices_of(entry, DEVICES, 0) == block.devices for entry in block.comm)


def test_without_exchanges_there_is_one_block_of_shard_sets():
    (block,) = schedule({**COUNTS, "comm": {"oracle": 0}}, 0.0, (), seed=0)
    assert (len(block.compute), block.comm) == (160, ())


def test_asking_for_more_keeps_the_samples_that_were_there(blocks):
    more = schedule({kind: {r: 2 * n for r, n in roles.items()} for kind, roles in COUNTS.items()}, 0.15, DEVICES, 0)
    assert set(entries(blocks)) <= set(entries(more))


def test_names_are_parsed_back():
    entry = Entry("comm", "judge", 17, 1)
    assert entry.sample_id == "comm/judge/17/1"
    assert Entry.parse(entry.sample_id) == entry
    with pytest.raises(InputError, match="sample 'comm/jury/1/0': expected KIND/ROLE/NUMBER/REPEAT"):
        Entry.parse("comm/jury/1/0")


def test_totals_are_divided_in_the_preset_s_proportions():
    assert apportion({"oracle": 2, "judge": 1, "test": 1}, 10) == {"oracle": 5, "judge": 3, "test": 2}
    assert preset_counts("quick", "cpu", 20, 4)["comm"] == {"oracle": 2, "judge": 1, "test": 1}
    assert preset_counts("quick", "cpu", 20, 0)["comm"] == {"oracle": 0, "judge": 0, "test": 0}
    assert sum(preset_counts("survey", "cpu", None, None)["comm"].values()) == 3_000


def test_unknown_presets_and_negative_numbers_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean quick"):
        preset_counts("quik", "cpu", None, None)
    with pytest.raises(InputError, match="compute=-1"):
        preset_counts("quick", "cpu", -1, None)
