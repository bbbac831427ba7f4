"""What solvers make of unpooled tables, whose exchanges grow with their ids."""

import pytest

from shardgym import EmbeddingTable, ShardingTask, Topology, UniformIds, make_cost, make_solver

LONG = EmbeddingTable("long", 400_000, 64, 200.0, pooling="none")
TABLES = (
    LONG,
    EmbeddingTable("short", 40_000, 64, 100.0, pooling="none"),
    *[EmbeddingTable(f"one {n}", 200_000 * (n + 1), 64, 1.0, pooling="none") for n in range(4)],
    EmbeddingTable("bags", 300_000, 64, 20.0, UniformIds()),
)


def task_on(devices):
    return ShardingTask(TABLES, Topology.preset("dgx-h100", devices), 1024 * devices)


@pytest.mark.parametrize("solver", ["neuroshard_plus", "row_wise", "hierarchical", "column_greedy"])
def test_plans_are_of_kinds_that_torchrec_runs_and_beat_whole_tables(solver):
    task, cost = task_on(8), make_cost("gpu")
    plan, whole = (make_solver(name).solve(task, cost, seed=0) for name in (solver, "lookup_greedy"))
    found, simple = cost.evaluate(task, [plan, whole])
    assert found.total_ms < 0.7 * simple.total_ms
    kinds = {plan.kind_of(table.name, task) for table in task.tables if not table.is_pooled}
    assert kinds <= {"table_wise", "column_wise", "table_column_wise", "row_wise", "data_parallel"}


def test_the_search_by_kinds_cuts_long_sequences_by_rows_or_copies_them():
    """Rows and pieces of columns move as much; pieces of columns get all ids each."""
    for task in map(task_on, (8, 16)):
        plan = make_solver("neuroshard_plus").solve(task, make_cost("gpu"), seed=0)
        assert plan.kind_of("long", task) in ("row_wise", "data_parallel")
