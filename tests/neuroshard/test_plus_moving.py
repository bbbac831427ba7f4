"""neuroshard_plus from a plan in use: what it pays for moving, and plans that move little."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from neuroshard.plus.moving import Moving, plan_near
from neuroshard.plus.sharing import even_rows, nothing_shared
from neuroshard.shard_table import ShardTable
from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.errors import InputError
from shardgym.evaluation.incumbent import InUse
from shardgym.plans.migration import migration, rebound
from shardgym.plans.shard import Shard

RNG = np.random.default_rng(0)
TABLES = tuple(
    EmbeddingTable(f"t{n}", int(RNG.integers(10**5, 10**6)), 32, pooling_factor=float(RNG.uniform(1, 60)))
    for n in range(12)
)
TASK = ShardingTask(TABLES, dataclasses.replace(Topology.preset("dgx-h100", 4, 2**34), fast_domain_size=2), 65536)
DRIFTED = dataclasses.replace(
    TASK,
    tables=tuple(dataclasses.replace(t, pooling_factor=t.pooling_factor * float(RNG.uniform(0.5, 2))) for t in TABLES),
)
COST = make_cost("gpu")
PRICES = (1e-13, 1e-9, 1e-7)


@pytest.fixture(scope="module")
def in_use():
    return rebound(make_solver("neuroshard_plus", kicks=8).solve(TASK, COST), DRIFTED)


def total(plan):
    return COST.evaluate(DRIFTED, [plan])[0].total_ms


def test_the_dearer_a_byte_the_less_moves_and_what_is_paid_for_pays(in_use):
    solver = make_solver("neuroshard_plus", kicks=8)
    seen = []
    plans = [
        solver.solve(
            DRIFTED, COST, initial_plan=in_use, migration_ms_per_byte=price, observer=lambda *of: seen.append(of)
        )
        for price in PRICES
    ]
    moved = [migration(DRIFTED, in_use, plan).bytes for plan in plans]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0
    assert moved[-1] == 0
    for plan, price in zip(plans, PRICES, strict=True):
        plan.validate(DRIFTED)
        paid = total(plan) + price * migration(DRIFTED, in_use, plan).bytes
        assert paid <= total(in_use) + 1e-9
        # No other plan that was found is better at this price.
        assert paid <= min(total(o) + price * migration(DRIFTED, in_use, o).bytes for o in plans) * 1.03
    best = seen[-1]
    assert best[1] == pytest.approx(total(best[0]) + PRICES[-1] * migration(DRIFTED, in_use, best[0]).bytes)


def test_shared_tables_are_moved_from_and_to(in_use):
    by_rows = ShardingPlan.of(DRIFTED, [shard for table in TABLES for shard in even_rows(table, 4)])
    plus = make_solver("neuroshard_plus", kicks=4)
    assert plus.solve(DRIFTED, COST, initial_plan=by_rows, migration_ms_per_byte=1e-6) == by_rows
    freely = plus.solve(DRIFTED, COST, initial_plan=by_rows, migration_ms_per_byte=0)
    assert total(freely) < total(by_rows)


def test_the_published_search_pays_for_what_it_moves(in_use):
    assert make_solver("neuroshard").solve(DRIFTED, COST, initial_plan=in_use, migration_ms_per_byte=1e-6) == in_use


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), "1", True])
def test_prices_that_are_none(in_use, price):
    with pytest.raises(InputError, match="migration_ms_per_byte: expected a finite number from 0 on, got"):
        make_solver("neuroshard_plus").solve(DRIFTED, COST, initial_plan=in_use, migration_ms_per_byte=price)


def test_a_price_needs_a_plan_to_move_from():
    with pytest.raises(InputError, match="migration_ms_per_byte: expected an initial_plan, which is in use"):
        make_solver("neuroshard_plus").solve(DRIFTED, COST, migration_ms_per_byte=0.1)


def test_devices_keep_their_columns():
    shards = ShardTable(TASK)
    others = [Shard.whole(table, 0) for table in TABLES[1:]]
    first = TABLES[0]
    rows = (0, first.num_embeddings)
    old = ShardingPlan.of(TASK, [Shard("t0", rows, (0, 16), 2), Shard("t0", rows, (16, 32), 1), *others])
    units = np.zeros((4, 12), dtype=np.int64)
    units[:, 0] = [1, 4, 2, 1]  # device 2 gives a half to 0 and 3
    units[0, 1:] = 8
    near = plan_near(shards, units, [], old)
    moving = Moving(shards, InUse(old, 1.0))
    found = migration(TASK, old, near)
    assert {move.destination for move in found.moves} == {0, 3}
    assert found.bytes == moving.ms(units, shared_nothing(shards)) == 2 * first.num_embeddings * 4 * 4
    # What moves add is the difference of sums before and after.
    moves = np.array([[0, 1, 0, 1, -1, 0], [2, 0, 0, 2, 3, 8], [3, 2, 0, 1, 0, 2]])
    for move, more in zip(moves, moving.ms_more(units, moves), strict=True):
        giver, taker, table, given, back, back_units = move
        after = units.copy()
        after[[giver, taker], table] += [-given, given]
        if back >= 0:
            after[[giver, taker], back] += [back_units, -back_units]
        nothing = shared_nothing(shards)
        assert more == pytest.approx(moving.ms(after, nothing) - moving.ms(units, nothing))


def shared_nothing(shards):
    return nothing_shared(shards.task, 3)
