"""What TorchRec's steps take besides what costs count: outputs are permuted where columns are cut."""

import dataclasses

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import numpy as np
import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding import cw_sharding
from torchrec_toys import MARKS, run_ranks

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.costs.calibrated import CalibratedCost, Calibration
from shardgym.costs.torchrec_steps import permuted_columns, step_costs
from shardgym.plans.migration import rebound
from shardgym.torchrec import ShardGymPlanner, from_torchrec, model_from_task, to_torchrec
from shardgym.torchrec.following import Rule, follow, solve_beside_host_tables
from shardgym.torchrec.real_steps import sharders
from shardgym.torchrec.table_cuts import as_run

pytestmark = MARKS

TABLES = tuple(EmbeddingTable(name, 100, 16, pooling_factor=2.0) for name in ("x.a", "x.b", "x.c", "y.d"))
PAIR = ShardingTask(TABLES, Topology(2, 2**20), 10)
#: The first table has two features, the second a fused operator of its own.
SHARED, APART = dataclasses.replace(TABLES[0], num_features=2), dataclasses.replace(TABLES[1], precision="fp16")
MIXED = dataclasses.replace(PAIR, tables=(SHARED, APART, *TABLES[2:]))

#: Of each table, its columns on device 0 and those on device 1, or () for halves of its rows; how many columns are
#: permuted, and how many in the mixed collection.
PLANS = {
    "whole": ([(16, 0), (0, 16), (16, 0), (0, 16)], 0, 0),
    "another one lies between": ([(16, 0), (8, 8), (16, 0), (0, 16)], 48, 0),
    "two pieces each": ([(8, 8), (8, 8), (16, 0), (16, 0)], 48, 64),
    "last of a rank and first of the next": ([(16, 0), (8, 8), (0, 16), (0, 16)], 0, 0),
    "alone in its collection": ([(16, 0), (0, 16), (16, 0), (4, 12)], 0, 0),
    "alone beside rows": ([(8, 8), (), (), (0, 16)], 0, 32),
}


def plan_of(widths, task=PAIR):
    cuts = []
    for table, of_table in zip(TABLES, widths, strict=True):
        halves = [((50 * n, 50 * n + 50), (0, 16)) for n in range(2)]
        pieces = [((0, 100), (0, of_table[0])), ((0, 100), (of_table[0], 16))] if of_table else halves
        cuts += [Shard(table.name, *of, n) for n, of in enumerate(pieces) if of[1][0] < of[1][1]]
    return ShardingPlan.of(task, cuts)


def test_columns_are_permuted_where_torchrec_permutes_them():
    def permuted(rank):
        found = []

        class Recorded(cw_sharding.PermutePooledEmbeddingsSplit):
            def __init__(self, widths, *arguments, **named):
                found[-1] += sum(widths)
                super().__init__(widths, *arguments, **named)

        cw_sharding.PermutePooledEmbeddingsSplit = Recorded
        for plan, task in cases:
            found.append(0)
            model = model_from_task(task)
            plan = to_torchrec(plan, task, model, device_type="cpu")
            DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders())
        return found

    cases = [(plan_of(widths, task), task) for widths, *_ in PLANS.values() for task in (PAIR, MIXED)]
    expected = [permuted_columns(*case) for case in cases]
    assert run_ranks(2, permuted) == [expected] * 2
    assert expected == [columns for _, *of_tasks in PLANS.values() for columns in of_tasks]


def test_a_permutation_reads_and_writes_outputs_of_a_ranks_samples_in_both_exchanges():
    whole, cut = (plan_of(PLANS[name][0]) for name in ("whole", "two pieces each"))
    for name, bandwidth in {"cpu-core": 6.59e9, "a100": 2.039e12}.items():
        task = ShardingTask(TABLES, Topology(2, 2**20, device=name), 10)
        cost = make_cost("roofline")
        plans = [rebound(whole, task), rebound(cut, task)]
        before, after = cost.evaluate(task, plans), step_costs(cost, task, plans)
        assert after[0] == before[0]
        ms = 2 * 5 * 48 * 4 / bandwidth * 1e3  # five samples of a rank, 48 columns of four bytes
        more = after[1].per_device - before[1].per_device
        np.testing.assert_allclose(more, [[0, 0, ms, ms, 0]] * 2, rtol=1e-6, atol=1e-12)
    slower = CalibratedCost(make_cost("roofline"), Calibration("roofline", "cpu-core", "here", 1.0, 3.0, 0.0))
    more = step_costs(slower, PAIR, [cut])[0].per_device - slower.evaluate(PAIR, [cut])[0].per_device
    np.testing.assert_allclose(more[:, 2], 3 * 2 * 5 * 48 * 4 / 6.59e9 * 1e3)


def test_rating_and_plans_without_a_cost_stay_as_they_are():
    cut = plan_of(PLANS["two pieces each"][0])
    rating = make_cost("torchrec_rating")
    assert step_costs(rating, PAIR, [cut]) == rating.evaluate(PAIR, [cut])
    small = ShardingTask(TABLES, Topology(2, 1000), 10)
    assert not step_costs(make_cost("roofline"), small, [rebound(cut, small)])[0].feasible


def test_grids_are_permuted_and_tables_by_rows_and_replicas_are_not():
    tables = tuple(EmbeddingTable(f"x.{name}", 100, 16) for name in "abcd")
    task = ShardingTask(tables, Topology(4, 2**20, fast_domain_size=2), 12)
    grids = [
        Shard(name, (50 * row, 50 * row + 50), (8 * host, 8 * host + 8), 2 * host + row)
        for name in ("x.a", "x.b") for host in range(2) for row in range(2)
    ]  # fmt: skip
    others = [Shard("x.c", (25 * n, 25 * n + 25), (0, 16), n) for n in range(4)]
    plan = ShardingPlan.of(task, [*grids, *others, Shard.whole(tables[3], *range(4))])
    assert permuted_columns(plan, task) == 32


def task_of(number):
    widths = [16, 32, 64]
    tables = tuple(
        EmbeddingTable(f"x.t{n}", 1000 + 400 * n, widths[n % 3], pooling_factor=1.0 + n % 7) for n in range(number)
    )
    return ShardingTask(tables, Topology(4, 2**30, intra_bandwidth=0.65e9), 4096)


def test_columns_are_cut_where_that_brings_more_than_the_permutation_takes():
    cost = make_cost("roofline")
    few, many = task_of(5), task_of(10)
    assert permuted_columns(ShardGymPlanner(few.topology, 1024).plan_task(few), few) == 160
    cut = make_solver("neuroshard_plus").solve(many, cost)
    plan = ShardGymPlanner(many.topology, 1024).plan_task(many)
    costs = cost.evaluate(many, [cut, plan])
    steps = step_costs(cost, many, [cut, plan])
    assert permuted_columns(cut, many) == 352
    assert permuted_columns(plan, many) == 0
    assert costs[0].total_ms < costs[1].total_ms == steps[1].total_ms < steps[0].total_ms


def test_tables_make_room_for_one_in_the_memory_of_the_host():
    rng = np.random.default_rng(2)
    tables = tuple(
        EmbeddingTable(
            f"x.t{n}", int(10 ** rng.uniform(4, 6)), int(rng.choice([32, 64, 128])), float(rng.uniform(1, 20))
        )
        for n in range(12)
    )
    servers = dataclasses.replace(Topology.preset("dgx-a100", 4), host_memory_bytes=2**36)
    task = ShardingTask(tables, servers, 8192)
    cost = make_cost("gpu")
    rules = {"x.t0": Rule(kernels=(("fused_uvm", 0.0),))}
    totals = []
    for solver in (make_solver("neuroshard_plus", row_cuts=False), make_solver("lpt")):
        plan = solve_beside_host_tables(solver, task, cost, rules, seed=0)
        followed = follow(plan, task, cost, rules)
        totals.append([answer.total_ms for answer in step_costs(cost, task, [plan, followed])])
    (before, after), (_, simple) = totals
    assert after < 0.7 * before
    assert after < 1.01 * simple


def test_the_plan_that_is_priced_is_the_one_that_torchrec_runs():
    """Pieces of 8 and 56 columns of an unpooled table become eight of 8: then it is better left whole."""
    tables = tuple(EmbeddingTable(f"x.t{n}", 10_000, 64, 20.0, pooling="none") for n in range(3))
    task = ShardingTask(tables, Topology.preset("dgx-a100", 2), 4096)
    pieces = [Shard("x.t0", (0, 10_000), columns, n) for n, columns in enumerate([(0, 8), (8, 64)])]
    plan = ShardingPlan.of(task, [*pieces, Shard.whole(tables[1], 0), Shard.whole(tables[2], 0)])
    run = as_run(plan, task)
    assert len(run.of_table("x.t0")) == 8
    assert from_torchrec(to_torchrec(plan, task), task) == run == as_run(run, task)
    cost = make_cost("gpu")
    followed = follow(plan, task, cost, {})
    priced, before = (answer.total_ms for answer in cost.evaluate(task, [followed, run]))
    assert priced < before
    assert from_torchrec(to_torchrec(followed, task), task) == followed
    asked = follow(plan, task, cost, {"x.t0": Rule(frozenset({"column_wise"}))})
    assert asked == run
