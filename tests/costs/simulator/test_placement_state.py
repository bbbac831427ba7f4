"""PlacementState: the incremental interface gives the numbers of whole plans."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shardgym import InputError, Shard, ShardingPlan

ENOUGH = 1e-5


def finished(task, state):
    shards = [dataclasses.replace(s, device=int(d)) for s, d in zip(state.candidates, state.devices, strict=True)]
    return ShardingPlan.of(task, shards)


def test_placing_every_table_gives_the_times_of_the_finished_plan(oracle, task):
    state, rng = oracle.begin(task), np.random.default_rng(1)
    for candidate in rng.permutation(12):
        state.add(candidate, int(rng.integers(3)))
    (cost,) = oracle.evaluate(task, [finished(task, state)])
    np.testing.assert_allclose(state.per_device(), cost.per_device, rtol=ENOUGH)
    assert state.total() == pytest.approx(cost.total_ms, rel=ENOUGH)


def test_what_if_says_what_adding_would_give_and_places_nothing(oracle, task):
    state = oracle.begin(task)
    for candidate in range(6):
        state.add(candidate, candidate % 3)
    before = state.compute_ms()
    predicted = state.what_if([6, 7, 6], [0, 0, 2])
    assert predicted.shape == (3, 2)
    assert state.compute_ms().tolist() == before.tolist()
    for row, (candidate, device) in zip(predicted, [(6, 0), (7, 0), (6, 2)], strict=True):
        trial = state.copy()
        trial.add(candidate, device)
        np.testing.assert_allclose(trial.compute_ms()[device], row, rtol=ENOUGH)


def test_adding_and_removing_a_thousand_times_leaves_no_trace(oracle, task):
    state, rng = oracle.begin(task), np.random.default_rng(2)
    for candidate in range(11):
        state.add(candidate, candidate % 3)
    before = state.per_device()
    for device in rng.integers(0, 3, 1000):
        state.add(11, int(device))
        state.remove(11)
    assert state.per_device().tolist() == before.tolist()


def test_a_device_that_was_emptied_computes_for_free(oracle, task):
    state = oracle.begin(task)
    state.add(0, 1)
    state.remove(0)
    assert state.compute_ms().tolist() == [[0, 0]] * 3


def test_many_whole_placements_in_one_call_agree_with_whole_plans(oracle, task, plans):
    placements = [[plan_device(plan, table.name) for table in task.tables] for plan in plans]
    expected = [cost.total_ms for cost in oracle.evaluate(task, plans)]
    np.testing.assert_allclose(oracle.begin(task).totals(placements), expected, rtol=ENOUGH)


def plan_device(plan, name):
    return next(s.device for s in plan.shards if s.table == name)


def test_column_halves_can_be_added_as_candidates_in_mid_search(oracle, task):
    state = oracle.begin(task, [])
    table = max(task.tables, key=lambda t: t.embedding_dim)
    rows, half = (0, table.num_embeddings), table.embedding_dim // 2
    others = state.extend([Shard.whole(t, 0) for t in task.tables if t.name != table.name])
    halves = state.extend([Shard(table.name, rows, (0, half), 0), Shard(table.name, rows, (half, 2 * half), 0)])
    for candidate in others:
        state.add(candidate, candidate % 3)
    state.add(halves[0], 0)
    state.add(halves[1], 1)
    (cost,) = oracle.evaluate(task, [finished(task, state)])
    np.testing.assert_allclose(state.per_device(), cost.per_device, rtol=ENOUGH)


def test_a_copy_does_not_change_with_its_original(oracle, task):
    state = oracle.begin(task)
    state.add(0, 0)
    other = state.copy()
    state.add(1, 0)
    other.extend([Shard.whole(task.tables[2], 0)])
    assert other.compute_ms().tolist() != state.compute_ms().tolist()
    assert (len(state.candidates), len(other.candidates)) == (12, 13)
    assert other.devices.tolist().count(-1) == 12


def test_mistakes_are_named(oracle, judge, task):
    state = oracle.begin(task)
    state.add(3, 1)
    with pytest.raises(InputError, match="candidate 3 is on device 1"):
        state.add(3, 0)
    with pytest.raises(InputError, match="candidate 4 is on no device"):
        state.remove(4)
    with pytest.raises(InputError, match="candidates 0 to 11"):
        state.add(12, 0)
    with pytest.raises(InputError, match="devices 0 to 2"):
        state.add(0, 3)
    with pytest.raises(InputError, match="role='oracle'"):
        judge.begin(task)
