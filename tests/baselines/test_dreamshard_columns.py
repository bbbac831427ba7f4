"""DreamShard on pieces of tables: how tables are cut, what the networks see of pieces, and what the cuts are worth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from baseline_tasks import VARIED, task_of

from baselines.dreamshard.columns import (
    DreamShardColumns,
    balanced_ms,
    large_first,
    longest_first,
    pack,
    part_counts,
    plan_of,
    play,
    ways_to_cut,
)
from baselines.dreamshard.moves import Placement, relieved
from baselines.dreamshard.pieces import ArrayNetwork, Pieces
from baselines.dreamshard.policy import DreamShardNetwork, place_by_score
from baselines.learning.encoder import sum_per_device
from baselines.learning.tables import FeatureScale, TaskBatch, table_features
from baselines.learning.weights import SHIPPED
from shardgym import InputError, NoFeasiblePlanError, make_cost, make_solver
from shardgym.envs.tasks import training_tasks
from shardgym.ties import QUANTUM

COST = make_cost("roofline")

#: Widths that halve unevenly, too.
TASK = task_of([(1000, 12, 3.0), (5000, 64, 9.0), (100, 4, 1.0), (2000, 28, 20.0)], (2**30,) * 3)

#: One table takes longer than all others together.
LARGE = task_of([(100_000, 128, 40.0), *VARIED], (2**30,) * 4, batch_size=8192)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return DreamShardNetwork(FeatureScale.of(training_tasks("tiny-v1", 8)))


@pytest.fixture(scope="module")
def shipped():
    """The networks that ship, which know that wide tables take longer."""
    solver = make_solver("dreamshard")
    solver.solve(TASK, COST)
    return solver._used.network


def pieces_of(network, task):
    return Pieces(ArrayNetwork(network), task)


@torch.no_grad()
def test_a_piece_is_seen_as_a_table_of_so_many_columns(network):
    pieces = pieces_of(network, TASK)
    parts = [part for cut in pieces.cut([(0, 2), (1, 4), (3, 2)]) for part in cut]
    assert [(pieces.tables[n], pieces.columns[n]) for n in parts] == [(0, 8), (0, 4), *[(1, 16)] * 4, (3, 16), (3, 12)]
    for number in [*range(4), *parts]:
        table = dataclasses.replace(TASK.tables[pieces.tables[number]], embedding_dim=pieces.columns[number])
        alone = dataclasses.replace(TASK, tables=(table,))
        features = torch.from_numpy(table_features(alone)).float()
        assert pieces.ms[number] == pytest.approx(float(network.cost.table_ms(features)), rel=1e-4)
        assert pieces.bytes[number] == alone.total_bytes


@torch.no_grad()
def test_devices_take_what_the_cost_network_predicts(network):
    pieces = pieces_of(network, TASK)
    devices = [2, 0, 2, 2]
    sums = sum_per_device(network.cost.encoder(TaskBatch.of([TASK]).features), torch.tensor([[devices]]), 3)
    expected = network.cost.device_ms(sums)[0, 0].sum(dim=-1)
    found = pieces.network.device_ms(pieces.device_loads(range(4), devices))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=QUANTUM)
    assert relieved(pieces, Placement(range(4), devices), 0).predicted_ms == pytest.approx(
        float(expected.max()), rel=1e-4, abs=QUANTUM
    )


def test_whole_tables_are_placed_as_dreamshard_does(network):
    """Devices that hold nothing may change places: which of equal scores is larger is a matter of rounding."""
    for task in [*training_tasks("tiny-v1", 6), *training_tasks("dlrm4-v1", 3)]:
        theirs = place_by_score(network, task)
        pieces = pieces_of(network, task)
        episode = play(pieces, longest_first(pieces, range(task.num_tables)))
        placed = dict(zip(episode.placement.numbers, episode.placement.devices, strict=True))
        ours = [placed[table] for table in range(task.num_tables)]
        assert len({*zip(ours, theirs, strict=True)}) == len({*ours}) == len({*theirs})


@pytest.mark.parametrize(("units", "counts"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (9, [2, 4, 8, 9])])
def test_tables_are_cut_into_two_parts_and_more_up_to_the_least_width(units, counts):
    assert part_counts(units) == counts


def test_tables_are_cut_until_no_piece_takes_more_than_its_share(shipped):
    task = task_of([(100_000, 64, 40.0), *VARIED, (50_000, 12, 30.0)], (2**30,) * 3)
    pieces = pieces_of(shipped, task)
    shares = (0.6, 0.3, 0.1)
    ways = ways_to_cut(pieces, shares)
    assert ways[0] == list(range(10))
    assert len(ways) == 4
    even_ms = sum(pieces.ms[:10]) / 3
    for way, share in zip(ways[1:], shares, strict=True):
        columns = np.bincount([pieces.tables[n] for n in way], weights=[pieces.columns[n] for n in way])
        assert columns.tolist() == [table.embedding_dim for table in task.tables]
        assert all(pieces.ms[n] <= share * even_ms or pieces.columns[n] == 4 for n in way)


def test_ways_to_cut_are_told_apart_by_what_balanced_pieces_would_cost(shipped):
    pieces = pieces_of(shipped, LARGE)
    ways = [*ways_to_cut(pieces, (1.0, 0.5)), pieces.cut([(0, 32)])[0] + list(range(1, 9))]
    costs = balanced_ms(pieces, ways)
    assert costs.shape == (4,)
    assert 0 < costs.argmin() < 3
    assert costs[0] == pytest.approx(
        relieved(pieces, Placement(range(9), [0, *[1, 2, 3, 1, 2, 3, 1, 2]]), 0).predicted_ms
    )


def test_pieces_of_a_table_on_one_device_become_one_shard(network):
    pieces = pieces_of(network, TASK)
    left, right = pieces.halves(0)
    quarters = pieces.cut([(1, 4)])[0]
    plan = plan_of(pieces, Placement([left, right, *quarters, 2, 3], [1, 1, 2, 0, 2, 1, 0, 2]))
    plan.validate(TASK)
    assert [(s.table, s.columns, s.devices[0]) for s in plan.shards] == [
        ("t0", (0, 12), 1), ("t1", (0, 16), 0), ("t1", (16, 32), 1), ("t1", (32, 64), 2), ("t2", (0, 4), 0),
        ("t3", (0, 28), 2),
    ]  # fmt: skip


def test_changes_relieve_the_slowest_device_and_respect_memory(shipped):
    task = task_of(VARIED, (2**30, 2**30, 100_000))
    pieces = pieces_of(shipped, task)
    before = relieved(pieces, Placement(range(8), [0] * 8), 0)
    costs = [before.predicted_ms]
    for most in range(1, 6):
        after = relieved(pieces, before, most)
        plan_of(pieces, after).validate(task)
        costs.append(after.predicted_ms)
        assert after.predicted_ms == pytest.approx(relieved(pieces, after, 0).predicted_ms, rel=1e-4)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.7 * costs[0]


def test_a_swap_is_found_where_no_move_helps(shipped):
    task = task_of([(1000, 64, 20.0), (1000, 64, 10.0), (1000, 64, 20.0), (1000, 64, 10.0)])
    pieces = pieces_of(shipped, task)
    after = relieved(pieces, Placement(range(4), [0, 1, 0, 1]), 4)
    assert len({after.devices[0], after.devices[2]}) == len({after.devices[1], after.devices[3]}) == 2


def test_one_large_table_is_spread_over_devices():
    cost = make_cost("simulator")
    solver = make_solver("dreamshard_columns")
    plan = solver.solve(LARGE, cost, seed=1)
    plan.validate(LARGE)
    assert len({shard.devices[0] for shard in plan.shards if shard.table == "t0"}) > 2
    whole = make_solver("dreamshard")
    costs = cost.evaluate(LARGE, [plan, whole.solve(LARGE, cost, seed=1)])
    assert costs[0].total_ms < 0.75 * costs[1].total_ms
    assert solver.weights_digest == whole.weights_digest


def test_tables_larger_than_a_device_are_cut_until_they_fit():
    task = task_of([(1000, 16, 1.0), (1000, 4, 1.0)], (32_000, 48_000))
    with pytest.raises(NoFeasiblePlanError):
        make_solver("dreamshard").solve(task, COST)
    solver = make_solver("dreamshard_columns")
    solver.solve(task, COST).validate(task)
    with pytest.raises(NoFeasiblePlanError, match=r"a piece of 4 columns of table 't0' of 16000 bytes fits on no"):
        solver.solve(task_of([(1000, 8, 1.0)], (8_000, 15_000, 15_000)), COST)


def test_large_tables_that_take_no_time_come_early_where_memory_is_full(shipped):
    """By predicted cost alone the large table comes last, when no device has room for four columns of it."""
    task = task_of([(1000, 16, 30.0 + n) for n in range(7)] + [(7000, 4, 0.1)], (256_000, 304_000))
    pieces = pieces_of(shipped, task)
    whole = range(8)
    assert longest_first(pieces, whole)[-1] == 7
    assert large_first(pieces, whole).index(7) < 7
    make_solver("dreamshard_columns").solve(task, COST).validate(task)
    plan_of(pieces, pack(pieces)).validate(task)


def test_weights_of_dreamshard_are_its_weights(tmp_path):
    solver = make_solver("dreamshard_columns", weights=str(SHIPPED / "dreamshard" / "dlrm4-v1" / "seed-2"))
    plan = solver.solve(TASK, COST)
    assert plan == make_solver("dreamshard_columns").solve(TASK, COST, seed=2)
    solver.save(tmp_path)
    again = make_solver("dreamshard", weights=str(tmp_path))
    assert again.weights_digest == solver.weights_digest
    with pytest.raises(InputError, match="cost_updates=5 is a setting of training"):
        make_solver("dreamshard_columns", cost_updates=5).solve(TASK, COST)


def test_networks_in_training_are_not_taken_for_what_they_were(network):
    """`fit` validates with the network that it trains, whose weights change."""
    solver = DreamShardColumns()
    task = task_of(VARIED, (2**30,) * 4)
    with torch.no_grad():
        before = solver.place(network, task, COST, 0)
        score = network.policy.score.weight.clone()
        network.policy.score.weight.neg_()
        assert solver.place(network, task, COST, 0) != before
        network.policy.score.weight.copy_(score)
        assert solver.place(network, task, COST, 0) == before
