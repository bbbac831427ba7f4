"""The compiled search does what the one in NumPy does, in every part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from random_tasks import random_task
from readable import neuroshard, readable_search

from neuroshard.grid_search import Cutoff, PartialPlacements
from neuroshard.shard_table import ShardTable
from neuroshard.solver import NeuroShard, inner_search
from shardgym import InputError, make_cost, make_solver
from shardgym.incumbent import Budget


def both_searches(task, simulator):
    return [search(ShardTable(task), simulator, Budget()) for search in (readable_search, inner_search)]


@pytest.mark.parametrize("seed", range(20))
def test_plans_cost_the_same(simulator, seed):
    """Few tables to many, one device to many, memory from tight to ample."""
    rng = np.random.default_rng([seed, 1])
    tables = int(rng.integers(1, 60))
    devices = int(rng.integers(1, max(tables // 3, 2)))
    task = random_task(seed, tables, devices, spare=float(rng.choice([1.5, 2.0, 10.0])), uneven=bool(seed % 2))
    settings = {"beam_width": int(rng.integers(1, 5)), "levels": 4, "grid": int(rng.integers(1, 15))}
    plans = [neuroshard(compiled, **settings).solve(task, simulator) for compiled in (False, True)]
    plain, fast = simulator.evaluate(task, plans)
    assert np.isfinite(plain.total_ms)
    assert fast.total_ms == pytest.approx(plain.total_ms, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_plans_cost_the_same_where_communication_is_modelled(compute_simulator, seed):
    task = random_task(seed, 20, 4)
    plans = [neuroshard(compiled).solve(task, compute_simulator) for compiled in (False, True)]
    plain, fast = compute_simulator.evaluate(task, plans)
    assert plain.communication == "modelled"
    assert fast.total_ms == pytest.approx(plain.total_ms, rel=1e-9)


def test_plans_cost_the_same_where_tables_are_equal(simulator):
    """Ties of compute, of bytes and of placements, all settled in the same way."""
    task = random_task(3, 5, 4)
    copies = [dataclasses.replace(table, name=f"{table.name}.{n}") for n in range(4) for table in task.tables]
    task = dataclasses.replace(task, tables=tuple(copies))
    plain, fast = (neuroshard(compiled).solve(task, simulator) for compiled in (False, True))
    assert fast == plain


def test_sets_are_priced_and_found_again_the_same_way(simulator):
    """Many more than there is room for at first."""
    task = random_task(8, 30, 2)
    plain, fast = (search.device_sets for search in both_searches(task, simulator))
    rng, devices = np.random.default_rng(0), [np.zeros(300, dtype=np.int64)] * 2
    for _ in range(12):
        shards = rng.choice(plain.shards.reached_by_halving(), 300)
        devices = [sets.add(before, shards) for sets, before in zip((plain, fast), devices, strict=True)]
    assert fast.count == plain.count > 3000
    np.testing.assert_array_equal(*devices)
    np.testing.assert_allclose(fast.compute_ms[: fast.count], plain.compute_ms[: plain.count], rtol=1e-12)
    pairs = devices[0].reshape(-1, 2)
    np.testing.assert_allclose(fast.total_ms(pairs), plain.total_ms(pairs), rtol=1e-12)
    assert [fast.members(n) for n in pairs[:, 0].tolist()] == [plain.members(n) for n in pairs[:, 0].tolist()]


@pytest.mark.parametrize("scales", [[1.1, 1.2, 1.4, 1.8, 2.5], [2.0], [1.3, np.inf]])
def test_placements_are_the_same_for_every_value_of_the_grid(simulator, scales):
    """Sequences in no sensible order, some equal, many beginning alike; memory that binds."""
    task = random_task(11, 14, 4, spare=1.8, uneven=True)
    sequences = np.array([ShardTable(task).whole] * 12)
    rng = np.random.default_rng(5)
    for n in range(1, len(sequences)):
        first = int(rng.integers(0, 13))
        sequences[n, first:] = rng.permutation(sequences[n, first:])
    sequences[3] = sequences[7]
    max_columns = np.array(scales) * sum(table.embedding_dim for table in task.tables) / task.num_devices
    found = []
    for search in both_searches(task, simulator):
        best = search.place(sequences, max_columns, Cutoff(len(sequences)))
        feasible = np.flatnonzero(np.isfinite(best.costs)).tolist()
        found.append((best.costs, [list(map(sorted, best.devices_of(n))) for n in feasible]))
    assert len(set(found[0][0])) > 1
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-9)
    assert found[1][1] == found[0][1]


@pytest.mark.parametrize("threads", [2, 3, 100])
def test_threads_change_nothing(simulator, monkeypatch, threads):
    monkeypatch.setattr("neuroshard.compiled_search._WORTH_A_THREAD", 1)
    task = random_task(13, 20, 4, spare=1.5, uneven=True)
    found = {}
    for count in (1, threads):
        seen: list[float] = []
        search = NeuroShard(levels=3, threads=count)
        plan = search.solve(task, simulator, observer=lambda plan, cost_ms, seen=seen: seen.append(cost_ms))
        plan.validate(task)
        found[count] = plan, seen
    assert found[threads] == found[1]


def test_a_time_limit_ends_all_threads(simulator, monkeypatch):
    monkeypatch.setattr("neuroshard.compiled_search._WORTH_A_THREAD", 1)
    task = random_task(13, 20, 4)
    NeuroShard(threads=2).solve(task, simulator, time_limit_s=0).validate(task)


def test_a_time_limit_begins_when_everything_is_compiled(simulator, monkeypatch):
    """Everything that a search with a limit calls has been called before."""
    from neuroshard import compiled_prices, compiled_search

    called, ready = [], []
    for module, name in ((compiled_search, "add_all"), (compiled_prices, "slowest_ms"), (compiled_search, "advance")):
        work = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, work=work, name=name: called.append(name) or work(*a))
    begin = Budget.__init__
    monkeypatch.setattr(Budget, "__init__", lambda self, s=None: ready.append((s, {*called})) or begin(self, s))
    NeuroShard().solve(random_task(1, 4, 2), simulator, time_limit_s=10)
    assert (10, {"add_all", "slowest_ms", "advance"}) in ready


@pytest.mark.parametrize("threads", [0, 1.5, True])
def test_threads_out_of_range_are_refused(threads):
    with pytest.raises(InputError, match=r"threads .* is not a whole number from 1 on"):
        make_solver("neuroshard", threads=threads)


@pytest.mark.parametrize(
    ("ms", "used", "columns", "device"),
    [
        ([2, 1, 3], [0, 9, 0], [0, 0, 0], 1),
        ([1, 1, 1], [5, 3, 3], [0, 0, 0], 1),
        ([1, 1, 1], [11, 11, 10], [0, 0, 0], 2),
        ([1, 1, 1], [0, 0, 0], [9, 8, 0], 1),
        ([1, 1, 1], [11, 0, 0], [0, 9, 9], -1),
    ],
)
def test_a_shard_goes_to_the_least_compute_then_bytes_then_number_where_there_is_room(ms, used, columns, device):
    """A shard of 4 columns and 2 bytes on devices of at most 12 columns and 12 bytes."""
    from neuroshard.compiled_search import Limits, least_loaded

    partial = PartialPlacements.start(1, 1, 3)
    partial.ms[0] = ms
    partial.bytes[0] = used
    partial.columns[0] = columns
    limits = Limits(np.array([12.0]), np.full(3, 12), np.array([4]), np.array([2]))
    assert least_loaded(partial, 0, limits, 0) == device


def test_other_cost_models_are_searched_alike():
    task = random_task(5, 4, 2)
    roofline = make_cost("roofline")
    plain, found = (neuroshard(compiled, levels=1).solve(task, roofline) for compiled in (False, True))
    assert found == plain
