"""The fast search finds what the published one finds."""

import dataclasses

import numpy as np
import plain_search
import pytest
from plain_search import PlainSearch
from random_tasks import random_task

from neuroshard.beam import SearchSettings
from neuroshard.solver import NeuroShard
from shardgym import EmbeddingTable, InputError, ShardingTask, Topology, make_solver
from shardgym.costs.ties import QUANTUM


def seeds(count: int) -> list[object]:
    """Return seeds; the second half is for the long sweeps."""
    return [seed if 2 * seed < count else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]


def assert_same_cost(task: ShardingTask, simulator) -> None:
    """Where the plain search finds a plan, that of the fast one has the same predicted cost, whose phases it rounds."""
    plain_plan, plain_ms = PlainSearch(task, simulator).run()
    assert plain_plan is not None, "the task does not distinguish anything"
    plans = [plain_plan, NeuroShard().solve(task, simulator)]
    assert [cost.total_ms for cost in simulator.evaluate(task, plans)] == pytest.approx(
        [plain_ms] * len(plans), abs=5 * QUANTUM / 2, rel=0
    )


@pytest.mark.parametrize("seed", seeds(12))
def test_plans_cost_the_same_where_memory_does_not_bind(simulator, seed):
    rng = np.random.default_rng(seed)
    assert_same_cost(random_task(seed, int(rng.integers(3, 13)), int(rng.integers(2, 5))), simulator)


@pytest.mark.parametrize("seed", seeds(6))
def test_plans_cost_the_same_where_memory_is_tight_and_uneven(simulator, seed):
    assert_same_cost(random_task(seed, 10, 3, spare=1.3, uneven=True, optimizer="rowwise_adagrad"), simulator)


def test_plans_cost_the_same_with_equal_tables_in_any_number(simulator):
    task = random_task(3, 4, 3)
    copies = [dataclasses.replace(table, name=f"{table.name}.{n}") for n in range(3) for table in task.tables]
    assert_same_cost(dataclasses.replace(task, tables=tuple(copies)), simulator)


def test_plans_cost_the_same_on_one_device_and_with_one_table(simulator):
    assert_same_cost(random_task(5, 6, 1), simulator)
    (table,) = random_task(12, 1, 2).tables
    wide = dataclasses.replace(table, embedding_dim=64)
    alone = ShardingTask((wide,), Topology(num_devices=2, memory_bytes=2**30), batch_size=512)
    assert_same_cost(alone, simulator)


def test_constants_are_the_published_ones():
    settings = NeuroShard().settings
    assert dataclasses.astuple(settings) == (
        plain_search.BEAM_WIDTH, plain_search.CANDIDATES, plain_search.LEVELS, plain_search.GRID
    )  # fmt: skip
    assert settings.scales().tolist() == pytest.approx(plain_search.SCALES, abs=1e-15)


def test_a_grid_of_one_is_the_mean_width_and_a_grid_of_none_no_limit():
    assert SearchSettings(grid=1).scales().tolist() == [1.0]
    assert SearchSettings(grid=0).scales().tolist() == [np.inf]


def test_without_a_grid_a_device_may_get_as_wide_as_it_likes(simulator, monkeypatch):
    """One table is wider than every limit of the grid: without cuts, only the packing has a plan then."""
    tables = tuple(EmbeddingTable(f"t{n}", 1000, width) for n, width in enumerate([128, 4, 4]))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=512)
    monkeypatch.delattr("neuroshard.solver.pack")
    NeuroShard(levels=0, grid=0).solve(task, simulator).validate(task)
    with pytest.raises(NameError, match="pack"):
        NeuroShard(levels=0).solve(task, simulator)


@pytest.mark.parametrize(
    "settings", [{"beam_width": 0}, {"candidates": 0}, {"levels": -1}, {"grid": -1}, {"grid": 1.5}, {"levels": True}]
)
def test_settings_out_of_range_are_refused(settings):
    (name,) = settings
    with pytest.raises(InputError, match=rf"{name}: expected an integer >= "):
        make_solver("neuroshard", **settings)


def test_without_levels_tables_stay_whole(simulator):
    task = random_task(2, 9, 3)
    plan = NeuroShard(levels=0).solve(task, simulator)
    assert [shard.num_columns for shard in plan.shards] == [t.embedding_dim for t in task.tables]
