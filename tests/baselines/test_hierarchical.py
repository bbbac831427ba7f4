"""Nodes balanced, kinds inside of them as asked for, memory of nodes and of devices, and the best of all kinds."""

import dataclasses
import itertools

import numpy as np
import pytest
from baseline_tasks import VARIED, task_of

from baselines.hierarchical import Hierarchical, split_among_nodes
from shardgym import EmbeddingTable, NoFeasiblePlanError, ShardingTask, Topology, make_cost

ROOFLINE = make_cost("roofline")
ROOM = 2**30


def nodes_task(tables, memory_bytes=(ROOM,) * 4, domain=2, **options):
    """Devices of slow CPUs in nodes, whose links are ten times as fast as those between them."""
    task = task_of(tables, memory_bytes, **options)
    return dataclasses.replace(
        task, topology=dataclasses.replace(task.topology, fast_domain_size=domain, intra_bandwidth=2.5e9)
    )


def dgx_task(num_tables, num_devices, pooling, seed=0):
    rng = np.random.default_rng(seed)
    tables = tuple(
        EmbeddingTable(
            f"t{n}", int(10 ** rng.uniform(4, 6)), int(rng.choice([32, 64, 128])), pooling * rng.uniform(1, 2)
        )
        for n in range(num_tables)
    )
    topology = Topology.preset("dgx-h100", num_devices)
    return ShardingTask(tables=tables, topology=topology, batch_size=1024 * num_devices, precision="fp16")


def kinds_of(task, plan):
    plan.validate(task)
    return [plan.kind_of(table.name, task) for table in task.tables]


def nodes_of(task, plan):
    """Node of every table, each of which must be in one."""
    plan.validate(task)
    nodes = [
        {device // task.topology.fast_domain_size for s in plan.of_table(table.name) for device in s.devices}
        for table in task.tables
    ]
    assert all(len(of_table) == 1 for of_table in nodes)
    return [node for (node,) in nodes]


@pytest.mark.parametrize("nodes", [2, 3])
def test_nodes_are_about_as_balanced_as_can_be(nodes):
    """Graham's bound for LPT is 4/3 - 1/3m of the optimum."""
    rng = np.random.default_rng(nodes)
    task = nodes_task(VARIED, (ROOM,) * 2 * nodes)
    for _ in range(4):
        figures = rng.integers(1, 100, size=task.num_tables).tolist()
        split = split_among_nodes(task, figures)
        assert sorted(n for node in split for n in node.tables) == list(range(task.num_tables))
        assert [node.devices for node in split] == [range(2 * k, 2 * k + 2) for k in range(nodes)]
        slowest = max(sum(figures[n] for n in node.tables) for node in split)
        best = min(
            max(np.bincount(of, weights=figures, minlength=nodes))
            for of in itertools.product(range(nodes), repeat=task.num_tables)
        )
        assert best <= slowest <= best * (4 / 3 - 1 / (3 * nodes))


def test_a_smaller_last_node_gets_less():
    task = nodes_task([(10, 4, 1.0)] * 12, (ROOM,) * 6, domain=4)
    split = split_among_nodes(task, [1.0] * 12)
    assert [(len(node.devices), len(node.tables)) for node in split] == [(4, 8), (2, 4)]
    nodes_of(task, Hierarchical().solve(task, ROOFLINE))


def test_one_device_and_nodes_of_one_device_keep_tables_whole():
    for memory_bytes in ((ROOM,), (ROOM,) * 3):
        task = nodes_task(VARIED, memory_bytes, domain=1)
        assert set(kinds_of(task, Hierarchical().solve(task, ROOFLINE))) == {"table_wise"}


def test_tables_that_take_no_rows_are_not_cut_by_rows():
    task = nodes_task([(1000, 16, 50.0), (1000, 16, 500.0), (1, 16, 1.0), (1000, 16, 500.0)])
    tables = (dataclasses.replace(task.tables[0], pooling="mean"), *task.tables[1:])
    task = dataclasses.replace(task, tables=tables)
    kinds = kinds_of(task, Hierarchical().solve(task, ROOFLINE))
    assert kinds[1] == kinds[3] == "table_row_wise"
    assert not {kinds[0], kinds[2]} & {"table_row_wise", "row_wise"}


def test_rows_are_cut_where_pooling_factors_are_large():
    gpu = make_cost("gpu")
    large, small = dgx_task(12, 16, 60.0), dgx_task(50, 16, 1.0)
    assert set(kinds_of(large, Hierarchical().solve(large, gpu))) == {"table_row_wise"}
    assert "table_row_wise" not in kinds_of(small, Hierarchical().solve(small, gpu))
    # One hot table among cold ones is taken alone.
    hot = dataclasses.replace(small.tables[0], pooling_factor=200.0)
    mixed = dataclasses.replace(small, tables=(hot, *small.tables[1:]))
    kinds = kinds_of(mixed, Hierarchical().solve(mixed, gpu))
    assert kinds[0] == "table_row_wise"
    assert kinds.count("table_row_wise") == 1


def test_the_best_cuts_columns_of_those_tables_alone_that_are_too_long():
    task = nodes_task([(1000, 128, 100.0), *[(1000, 16, 20.0)] * 9], (ROOM,) * 8, domain=4)
    task = dataclasses.replace(task, tables=tuple(dataclasses.replace(t, pooling="mean") for t in task.tables))
    assert kinds_of(task, Hierarchical().solve(task, ROOFLINE)) == ["table_column_wise"] + ["table_wise"] * 9


def test_rows_and_columns_make_fit_what_whole_tables_do_not():
    wide = nodes_task([(100, 8, 1.0)] * 2, (1600,) * 4)
    assert Hierarchical().solve(wide, ROOFLINE).bytes_per_device(wide) == [1600] * 4
    narrow = nodes_task([(100, 4, 1.0)] * 2, (800,) * 4)
    assert set(kinds_of(narrow, Hierarchical().solve(narrow, ROOFLINE))) == {"table_row_wise"}
    few_rows = nodes_task([(1, 4, 1.0)] * 2, (12,) * 4)
    with pytest.raises(NoFeasiblePlanError, match=r"inside the node that begins with device [02]: table 't[01]' of 16"):
        Hierarchical().solve(few_rows, ROOFLINE)


def test_what_fits_in_no_node_is_said():
    solver = Hierarchical()
    with pytest.raises(NoFeasiblePlanError, match=r"2 nodes treated as a device: table 't0' of 1600 bytes fits on no"):
        solver.solve(nodes_task([(100, 4, 1.0)], (500,) * 4), ROOFLINE)
