"""Sets priced by sums and sets evaluated on made-up tasks: both cost what plans do and lead to the same plans."""

import dataclasses

import numpy as np
import pytest
from random_tasks import random_task
from sums import WholePlans

from neuroshard import device_sets, grid_search
from neuroshard.device_sets import AdditiveDeviceSets, EvaluatedDeviceSets
from neuroshard.shard_table import ShardTable, plan_of
from neuroshard.solver import NeuroShard
from shardgym import make_cost
from shardgym.costs.ties import QUANTUM, quantized
from shardgym.evaluation.solver import Budget


@pytest.mark.parametrize("model", ["simulator", "compute_simulator", "roofline", "torchrec_rating"])
@pytest.mark.parametrize("seed", range(4))
def test_plans_cost_the_same(request, model, seed):
    """Few tables to many, one device to many, memory from tight to ample."""
    cost = request.getfixturevalue(model) if "simulator" in model else make_cost(model)
    rng = np.random.default_rng([seed, 1])
    tables = int(rng.integers(1, 16))
    devices = int(rng.integers(1, max(tables // 3, 2)))
    task = random_task(seed, tables, devices, spare=float(rng.choice([1.5, 2.0, 10.0])), uneven=bool(seed % 2))
    settings = {"beam_width": int(rng.integers(1, 4)), "levels": 2, "grid": int(rng.integers(1, 15))}
    plans = [NeuroShard(**settings).solve(task, one) for one in (cost, WholePlans(cost))]
    additive, evaluated = cost.evaluate(task, plans)
    assert np.isfinite(additive.total_ms)
    assert evaluated.total_ms == pytest.approx(additive.total_ms, rel=1e-9)


def test_plans_are_the_same_where_tables_are_equal(simulator):
    """Ties of compute, of bytes and of placements, all settled in the same way."""
    task = random_task(3, 4, 4)
    copies = [dataclasses.replace(table, name=f"{table.name}.{n}") for n in range(3) for table in task.tables]
    task = dataclasses.replace(task, tables=tuple(copies))
    search = NeuroShard(levels=2)
    assert search.solve(task, WholePlans(simulator)) == search.solve(task, simulator)


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_guessing_ahead_changes_what_is_priced_together_and_nothing_else(simulator, monkeypatch, ahead):
    task, calls = random_task(13, 20, 4, spare=1.5, uneven=True), []
    price = AdditiveDeviceSets._price
    monkeypatch.setattr(AdditiveDeviceSets, "_price", lambda sets, *these: calls.append(these) or price(sets, *these))
    expected = NeuroShard(levels=3).solve(task, simulator)
    usual = len(calls)
    monkeypatch.setattr(AdditiveDeviceSets, "ahead", ahead)
    calls.clear()
    assert NeuroShard(levels=3).solve(task, simulator) == expected
    assert np.sign(len(calls) - usual) == np.sign(2 - ahead)


def test_sets_are_priced_and_found_again_the_same_way(simulator, monkeypatch):
    monkeypatch.setattr("neuroshard.device_sets._FIRST_CAPACITY", 64)
    task = random_task(8, 30, 2)
    shards = ShardTable(task)
    by_sums, evaluated = AdditiveDeviceSets(shards, simulator.additive()), EvaluatedDeviceSets(shards, simulator)
    rng, devices = np.random.default_rng(0), [np.zeros(50, dtype=np.int64)] * 2
    for _ in range(6):
        added = rng.choice(shards.reached_by_halving(), 50)
        devices = [sets.add(before, added) for sets, before in zip((by_sums, evaluated), devices, strict=True)]
    assert by_sums.count == evaluated.count > 200
    np.testing.assert_array_equal(*devices)
    ms, expected = (sets.table.compute_ms[: sets.count] for sets in (by_sums, evaluated))
    np.testing.assert_allclose(ms, expected, rtol=1e-6)
    assert [by_sums.members(n) for n in devices[0].tolist()] == [evaluated.members(n) for n in devices[0].tolist()]


def test_a_time_limit_begins_when_everything_is_compiled(monkeypatch):
    """Everything that a search with a limit calls has been called before, whatever the cost is."""
    called, ready = [], []
    for module, name in ((device_sets, "add_all"), (device_sets, "fill"), (grid_search, "advance")):
        work = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, work=work, name=name: called.append(name) or work(*a))
    begin = Budget.__init__
    monkeypatch.setattr(Budget, "__init__", lambda self, s=None: ready.append((s, {*called})) or begin(self, s))
    for cost in (make_cost("roofline"), WholePlans()):
        called.clear()
        ready.clear()
        NeuroShard().solve(random_task(1, 4, 2), cost, time_limit_s=10)
        assert (10, {"add_all", "fill", "advance"}) in ready


@pytest.mark.parametrize("model", ["simulator", "roofline", "whole plans"])
def test_sets_cost_what_whole_plans_cost(simulator, model):
    """On devices of their own and in a plan; in another order they are the same sets."""
    cost = simulator if model == "simulator" else make_cost("roofline")
    shards = ShardTable(random_task(7, 6, 2))
    by_sums = model != "whole plans"
    sets = AdditiveDeviceSets(shards, cost.additive()) if by_sums else EvaluatedDeviceSets(shards, cost)
    devices = np.zeros(2, dtype=np.int64)
    for first, second in zip(shards.whole[:3], shards.whole[3:], strict=True):
        devices = sets.add(devices, np.array([first, second]))
    (whole,) = cost.evaluate(shards.task, [plan_of(shards, [sets.members(device) for device in devices])])
    np.testing.assert_array_equal(sets.table.passes_ms[devices], quantized(whole.per_device[:, [1, 4]]))
    np.testing.assert_array_equal(sets.table.compute_ms[devices], sets.table.passes_ms[devices].sum(axis=1))
    assert sets.total_ms(devices[None]) == pytest.approx([whole.total_ms], rel=0, abs=2 * QUANTUM)
    count, backwards = sets.count, np.zeros(1, dtype=np.int64)
    for shard in shards.whole[2::-1]:
        backwards = sets.add(backwards, np.array([shard]))
    assert backwards[0] == devices[0]
    assert sets.count == count + 2
