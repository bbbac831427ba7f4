"""The parts of `neuroshard_plus`: allocations, pricing, greedy construction, moves, kicks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.plus.construction import build, cut_greedily
from neuroshard.plus.local_search import PlusSettings, kick
from neuroshard.plus.moves import Allocation, moves_of
from neuroshard.plus.pricing import EstimatedPricing, ExactPricing, Pricing
from neuroshard.shard_table import ShardTable, plan_of_units, units_of
from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.incumbent import Budget


def random_units(shards: ShardTable, rng: np.random.Generator) -> np.ndarray:
    """Every unit of every table on a random one of two random devices, shape (D, T)."""
    devices = shards.task.num_devices
    units = np.zeros((devices, len(shards.units)), dtype=np.int64)
    for table, number in enumerate(shards.units.tolist()):
        for device in rng.choice(rng.integers(0, devices, 2), number):
            units[device, table] += 1
    return units


class ByHand(Pricing):
    """The first entry of a vector is ms; a plan takes as long as its slowest device, and 1 ms per 100 columns."""

    def compute(self, sums):
        return sums[..., 0]

    def totals(self, compute, columns):
        return compute.max(axis=1) + columns.max(axis=1) / 100


def by_hand(widths: list[int], ms: list[float], memory: list[int], softness: float = 0.0) -> ByHand:
    """Tables of 1 row; ms are of whole tables and in proportion for parts."""
    tables = tuple(EmbeddingTable(f"t{n}", 1, width, 1.0) for n, width in enumerate(widths))
    shards = ShardTable(
        ShardingTask(tables, Topology(num_devices=len(memory), memory_bytes=tuple(memory)), batch_size=8)
    )
    per_column = np.array(ms) / np.array(widths)
    return ByHand(shards, (shards.columns * per_column[shards.tables])[:, None], softness)


def test_a_shard_table_holds_every_width_with_its_bytes():
    shards = ShardTable(random_task(3, 4, 2, optimizer="rowwise_adagrad"))
    for row in np.flatnonzero(shards.columns).tolist():
        assert shards.bytes[row] == shards.shard(row).bytes(shards.task)
    assert shards.bytes[shards.first].tolist() == [0] * 4
    widths = [table.embedding_dim for table in shards.task.tables]
    assert shards.columns[shards.first + shards.units].tolist() == widths


def test_units_and_plans_say_the_same():
    rng, shards = np.random.default_rng(1), ShardTable(random_task(4, 8, 3))
    for _ in range(5):
        units = random_units(shards, rng)
        plan = plan_of_units(shards, units)
        plan.validate(shards.task)
        np.testing.assert_array_equal(units_of(shards, plan), units)


def test_shards_of_one_table_on_one_device_become_one_and_row_cuts_are_left_alone():
    task = by_hand([16], [1.0], [2**20] * 2).shards.task
    rows = (0, 1)
    halves = ShardingPlan.of(task, [Shard("t0", rows, (0, 8), 0), Shard("t0", rows, (8, 16), 0)])
    assert units_of(ShardTable(task), halves).tolist() == [[4], [0]]
    tall = ShardingTask((EmbeddingTable("t0", 8, 4),), task.topology, batch_size=8)
    by_rows = ShardingPlan.of(tall, [Shard("t0", (0, 5), (0, 4), 0), Shard("t0", (5, 8), (0, 4), 1)])
    assert units_of(ShardTable(tall), by_rows) is None


@pytest.mark.parametrize("model", ["simulator", "roofline", "estimate"])
def test_pricing_says_what_the_cost_model_says(simulator, model):
    """The additive estimate too, once it has learned from some plans of an additive cost; empty devices are free."""
    cost, shards = simulator if model == "simulator" else make_cost("roofline"), ShardTable(random_task(5, 9, 3))
    rng, tolerance = np.random.default_rng(2), 1e-3 if model == "estimate" else 1e-9  # widths are interpolated
    units = [random_units(shards, rng) for _ in range(6)]
    units[-1] = np.zeros_like(units[0])
    units[-1][1] = shards.units
    evaluated = cost.evaluate(shards.task, [plan_of_units(shards, one) for one in units])
    pricing: Pricing = ExactPricing(shards, cost.additive(), 0.0)
    if model == "estimate":
        pricing = EstimatedPricing(shards, cost, 0.0, Budget())
        pricing.learn(units[:3], evaluated[:3])
    for one, answer in zip(units, evaluated, strict=True):
        allocation = Allocation(pricing, one)
        compute = answer.per_device[:, [0, 3]].sum(axis=1)
        np.testing.assert_allclose(allocation.compute, compute, rtol=tolerance, atol=1e-9)
        assert allocation.total_ms == pytest.approx(answer.total_ms, rel=tolerance)
        assert allocation.value == allocation.total_ms


def test_the_estimate_learns_how_slow_communication_is():
    """Exchanges that take three times as long as the link model says."""

    class SlowLinks(type(make_cost("roofline"))):
        def score(self, task, plans):
            answers = super().score(task, plans)
            slow = [answer.per_device + answer.per_device[:, [2]] * [0, 2, 2, 0] for answer in answers]
            return [dataclasses.replace(a, per_device=ms) for a, ms in zip(answers, slow, strict=True)]

    cost, shards, rng = SlowLinks(), ShardTable(random_task(5, 9, 3)), np.random.default_rng(2)
    units = random_units(shards, rng)
    (evaluated,) = cost.evaluate(shards.task, [plan_of_units(shards, units)])
    pricing = EstimatedPricing(shards, cost, 0.0, Budget())
    columns = shards.columns[shards.first + units].sum(axis=1)
    before = pricing.totals(np.zeros((1, 3)), columns[None])
    pricing.learn([units], [evaluated])
    assert pricing.totals(np.zeros((1, 3)), columns[None]) == pytest.approx(3 * before)


def test_a_wider_device_costs_what_pricing_says():
    pricing = by_hand([16, 16], [1.0, 1.0], [2**20] * 2)
    pricing.fit_column_price()
    assert pricing.ms_per_column == pytest.approx(0.01)


def test_the_soft_maximum_counts_devices_that_are_not_the_slowest():
    pricing = by_hand([16], [1.0], [2**20] * 4)
    columns = np.zeros((2, 4), dtype=np.int64)
    compute = np.array([[8.0, 8.0, 8.0, 8.0], [8.0, 1.0, 1.0, 1.0]])
    assert pricing.excess(compute).tolist() == [0, 0]
    alike, alone = by_hand([16], [1.0], [2**20] * 4, softness=0.01).excess(compute)
    assert alike == pytest.approx(0.08 * np.log(4))
    assert alone == pytest.approx(0, abs=1e-9)
    assert pricing.rough_objective(compute, columns).tolist() == [8, 8]


def test_the_greedy_looks_at_the_device_with_the_shard_on_it():
    """Two tables fill device 0 in a single fused call: it has more to do before, and less after."""

    class Fused(ByHand):
        def compute(self, sums):
            return np.where(sums[..., 0] > 5, 6.0, sums[..., 0])

    plain = by_hand([4, 4, 4], [5.5, 4.0, 4.0], [2**20] * 2)
    pricing = Fused(plain.shards, plain.vectors, 0.0)
    built = build(pricing, np.arange(3)[None], plain.shards.units[None], np.zeros(1), Budget())
    assert built.units[0].tolist() == [[1, 0, 1], [0, 1, 0]]
    assert built.compute[0].tolist() == [6.0, 4.0]


def test_the_greedy_pays_for_width_when_columns_have_a_price():
    pricing = by_hand([4, 64, 8], [3.0, 2.0, 1.5], [2**20] * 2)
    plans = np.tile(np.arange(3), (2, 1)), np.tile(pricing.shards.units, (2, 1))
    built = build(pricing, *plans, np.array([0.0, 1.0]), Budget())
    assert built.columns.tolist() == [[4, 72], [12, 64]]
    assert built.compute.tolist() == [[3.0, 3.5], [4.5, 2.0]]


def test_the_greedy_says_where_a_shard_finds_no_room():
    """Two column plans of different length: the second cuts what does not fit whole."""
    pricing = by_hand([8, 8], [2.0, 1.0], [48, 16])
    tables, units = np.array([[0, 1, 1], [0, 1, 1]]), np.array([[2, 2, 0], [2, 1, 1]])
    built = build(pricing, tables, units, np.zeros(2), Budget())
    assert built.complete.tolist() == [False, True]
    assert built.units[1].tolist() == [[2, 1], [0, 1]]


@pytest.mark.parametrize("seed", range(4))
def test_moves_lead_where_they_say_within_memory(simulator, seed):
    """Exact prices are those of the allocation after the move; every kind of move is among them."""
    task = random_task(seed, 8, 3, spare=2.5)
    shards, rng = ShardTable(task), np.random.default_rng(seed)
    pricing = ExactPricing(shards, simulator.predictor(), 0.01)
    memory = np.array(task.topology.memory_bytes)
    allocation = Allocation(pricing, random_units(shards, rng))
    device = int(allocation.bytes.argmax())
    moves = moves_of(allocation, device, memory).priced(allocation, device)
    compute, columns = moves.outcome(allocation, device)
    assert {*np.sign(moves.back).tolist()} >= {-1, 1}, "no transfers, or no swaps"
    assert len(moves.targets) > 10
    for number in range(len(moves.targets)):
        after = Allocation(pricing, moves.applied(number, device, allocation.units))
        assert (after.units >= 0).all()
        assert after.units.sum(axis=0).tolist() == shards.units.tolist()
        changed = np.array([device, moves.targets[number]])
        assert (after.bytes[changed] <= memory[changed]).all()
        np.testing.assert_allclose(compute[number], after.compute, rtol=1e-9)
        assert columns[number].tolist() == after.columns.tolist()


def test_moves_are_of_every_kind():
    pricing = by_hand([16, 16, 8], [4.0, 2.0, 1.0], [2**20] * 2)
    allocation = Allocation(pricing, np.array([[4, 3, 0], [0, 1, 2]]))
    moves = moves_of(allocation, 0, np.array([2**20] * 2))
    reached = {str(moves.applied(n, 0, allocation.units).tolist()) for n in range(len(moves.targets))}
    assert {
        "[[0, 3, 0], [4, 1, 2]]",  # a whole table
        "[[2, 3, 0], [2, 1, 2]]",  # half of it
        "[[1, 3, 0], [3, 1, 2]]",  # most of it
        "[[4, 0, 0], [0, 4, 2]]",  # parts merged
        "[[4, 2, 0], [0, 2, 2]]",  # a cut shifted
        "[[0, 3, 2], [4, 1, 0]]",  # a table for a table
    } <= reached


def test_cutting_goes_on_as_long_as_it_pays():
    """One table is all the work: four devices get a quarter each; memory of one byte too few is no allocation."""
    pricing = by_hand([64, 4], [16.0, 0.1], [2**20] * 4)
    rounds: list[np.ndarray] = []
    last = cut_greedily(pricing, Budget(), rounds.append)
    assert last[:, 0].tolist() == [4, 4, 4, 4]
    assert rounds[-1].tolist() == last.tolist()
    full = by_hand([8, 8], [1.0, 1.0], [32, 31])
    assert cut_greedily(full, Budget(), rounds.append) is None


def test_kicks_change_something_and_keep_to_memory():
    shards, rng = ShardTable(random_task(2, 12, 3, spare=1.2)), np.random.default_rng(0)
    memory = np.array(shards.task.topology.memory_bytes)
    built = build(by_bytes(shards), np.arange(12)[None], shards.units[None], np.zeros(1), Budget())
    assert built.complete.all()
    units, seen = built.units[0], set()
    for _ in range(30):
        units = kick(shards, units, 2, rng)
        assert (shards.bytes[shards.first + units].sum(axis=1) <= memory).all()
        assert units.sum(axis=0).tolist() == shards.units.tolist()
        seen.add(units.tobytes())
    assert len(seen) > 15


def by_bytes(shards: ShardTable) -> ByHand:
    return ByHand(shards, shards.bytes[:, None].astype(np.float64), 0.0)


def test_a_kick_without_any_room_changes_nothing():
    pricing = by_hand([8], [1.0], [32, 15])
    assert kick(pricing.shards, np.array([[2], [0]]), 3, np.random.default_rng(0)).tolist() == [[2], [0]]


@pytest.mark.parametrize(
    "settings",
    [{"kicks": -1}, {"kicks": 1.0}, {"kick_moves": 0}, {"shortlist": 0}, {"sources": True}, {"queries": 0},
     {"softness": -0.1}, {"softness": float("nan")}, {"softness": "0"}],
)  # fmt: skip
def test_plus_settings_out_of_range_are_refused(settings):
    (name,) = settings
    with pytest.raises(InputError, match=rf"{name} .* is not a (whole )?number from"):
        PlusSettings(**settings)
