"""TorchRec's planner as a solver: its plans are valid, its own, the same in every process, and held to its rating."""

import sys

import pytest

from shardgym import EmbeddingTable, InputError, NoFeasiblePlanError, ShardingTask, Topology, make_cost, make_solver
from shardgym.errors import MissingDependencyError

RATING = make_cost("torchrec_rating")
NAMES = ("torchrec", "torchrec_perf", "torchrec_columns")
#: Tables that keep their rows together, each on one device or in pieces.
COLUMNS = {"sharding_types": ["table_wise", "column_wise"]}


def make_task(*tables: EmbeddingTable, memory: tuple[int, ...] = (2**40, 2**40)) -> ShardingTask:
    return ShardingTask(tables, Topology(len(memory), memory), batch_size=512)


def rating_of(solver: str, task: ShardingTask, **settings: object) -> float:
    plan = make_solver(solver, **settings).solve(task, RATING)
    return RATING.evaluate(task, [plan])[0].total_ms


@pytest.mark.parametrize("name", NAMES)
def test_without_torchrec_the_command_that_brings_it_is_said(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torchrec.distributed.planner", None)
    monkeypatch.delitem(sys.modules, "shardgym.torchrec", raising=False)
    command = r"pip install tensordict pyre-extensions && pip install --no-deps torchrec==1\.8\.0$"
    with pytest.raises(MissingDependencyError, match=f"needs 'torchrec', which is not installed: {command}"):
        make_solver(name).check_ready(RATING)


@pytest.fixture
def library():
    """TorchRec; tests that ask for it are skipped where it is missing."""
    return pytest.importorskip("torchrec", reason="needs TorchRec: tox -e torchrec")


@pytest.mark.torchrec
def test_the_perf_sorted_partitioner_places_slow_tables_first(library):
    """By storage the two large tables are apart, and the slow one joins either; by perf it is alone."""
    tables = [EmbeddingTable(f"large{n}", 1000, 128, 10.0) for n in range(2)]
    task = make_task(*tables, EmbeddingTable("slow", 50, 128, 20.0))
    assert rating_of("torchrec_perf", task, **COLUMNS) < 0.75 * rating_of("torchrec", task, **COLUMNS)


@pytest.mark.torchrec
def test_the_best_of_several_widths_cuts_a_table_that_one_device_would_wait_for(library):
    task = make_task(EmbeddingTable("wide", 1000, 128, 200.0), EmbeddingTable("other", 1000, 128, 1.0))
    plan = make_solver("torchrec_columns", **COLUMNS).solve(task, RATING)
    assert {shard.num_columns for shard in plan.shards if shard.table == "wide"} == {64}
    assert rating_of("torchrec_columns", task, **COLUMNS) < rating_of("torchrec", task, **COLUMNS)


@pytest.mark.torchrec
def test_plans_fit_into_memory_as_the_task_counts_it(library):
    tables = [EmbeddingTable(f"t.{n}", 100, 8, 50.0) for n in range(4)]
    task = make_task(*tables, memory=(3 * 3200, 3200))
    for name in NAMES:
        plan = make_solver(name).solve(task, RATING)
        plan.validate(task)
        assert plan.bytes_per_device(task) == [3 * 3200, 3200]


@pytest.mark.torchrec
def test_weighted_and_unpooled_tables_are_in_collections_of_their_own(library):
    tables = (EmbeddingTable("a", 100, 8), EmbeddingTable("b", 90, 8, weighted=True), EmbeddingTable("c", 80, 8))
    for task in (make_task(*tables), make_task(*tables, EmbeddingTable("d", 70, 8, pooling="none"))):
        for name in ("torchrec", "torchrec_perf"):
            make_solver(name).solve(task, make_cost("roofline")).validate(task)


@pytest.mark.torchrec
def test_tables_that_it_cannot_pack_are_no_plan(library):
    task = make_task(EmbeddingTable("a", 100, 8), EmbeddingTable("b", 100, 8), memory=(3300, 3100))
    with pytest.raises(NoFeasiblePlanError, match="TorchRec's planner found no plan: STRICT_CONSTRAINTS"):
        make_solver("torchrec").solve(task, RATING)


@pytest.mark.torchrec
def test_all_types_of_sharding_may_be_allowed(library):
    """By default it tries all but grids; small tables get replicas, hot ones are cut by rows."""
    tables = [EmbeddingTable("hot", 2**20, 128, 200.0), *(EmbeddingTable(f"t{n}", 8, 64, 1.0) for n in range(8))]
    task = ShardingTask(tuple(tables), Topology(4, 2**40, fast_domain_size=2), batch_size=4096)
    plan = make_solver("torchrec").solve(task, RATING)
    plan.validate(task)
    kinds = {plan.kind_of(table.name, task) for table in tables}
    assert kinds == {"data_parallel", "row_wise"}
    assert rating_of("torchrec", task) < 0.5 * rating_of("torchrec", task, **COLUMNS)
    for kind in ("grid_shard", "table_row_wise", "table_column_wise", "data_parallel"):
        plan = make_solver("torchrec_columns", sharding_types=[kind]).solve(task, RATING)
        assert plan.kind_of("hot", task) == kind


def test_mixed_tables_are_refused_with_the_solvers_that_plan_them():
    from baselines.torchrec.solvers import TorchRecColumns

    tables = EmbeddingTable("a", 8, 8, precision="fp16"), EmbeddingTable("b", 8, 8)
    task = ShardingTask(tables, Topology(2, 2**20), batch_size=64)
    message = "solver 'torchrec_columns' supports tables of one .* table 'a' has precision fp16,.*or 'torchrec_perf'"
    with pytest.raises(InputError, match=message):
        TorchRecColumns().solve(task, RATING)


def test_unknown_types_of_sharding_are_refused():
    from baselines.torchrec.solvers import TorchRec

    with pytest.raises(InputError, match=r"sharding_types: expected some of table_wise, .*, got 'rows'"):
        TorchRec(sharding_types=["rows"])
