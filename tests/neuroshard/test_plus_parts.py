"""The parts of `neuroshard_plus`: allocations, pricing, greedy construction, moves, kicks."""

import dataclasses

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.plus.linear_model import LinearModel, linear_model
from neuroshard.plus.local_search import Allocation, corrected, random_moves
from neuroshard.plus.moves import BYTES, LOAD, NONE, WIDTH
from neuroshard.plus.placement import DRAWS_PER_KICK, Placement, constructed, cut_and_place, kick_and_descend
from neuroshard.plus.pricing import SOFTNESS, Pricing, excess
from neuroshard.plus.searches import examples_of
from neuroshard.shard_table import ShardTable, plan_of_units, units_of
from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.links import COLUMNS, LOADS, SHARDS
from shardgym.costs.ties import QUANTUM

#: Describes no shards: vectors are given.
COSTS = make_cost("roofline").additive()


def random_units(shards: ShardTable, rng: np.random.Generator) -> np.ndarray:
    """Every unit of every table on a random one of two random devices, shape (D, T)."""
    devices = shards.task.num_devices
    units = np.zeros((devices, len(shards.units)), dtype=np.int64)
    for table, number in enumerate(shards.units.tolist()):
        for device in rng.choice(rng.integers(0, devices, 2), number):
            units[device, table] += 1
    return units


class ByHand(Pricing):
    """The first two entries of a vector are ms; a plan takes what its slowest device does, and 1 ms per 100 columns."""

    def compute(self, sums):
        return sums[..., :2]

    def totals(self, compute, loads):
        return compute.sum(axis=2).max(axis=1) + loads[..., COLUMNS].max(axis=1) / 100

    def row_prices(self, examples):
        return self.vectors[:, :2].sum(axis=1), 0.0


def vectors(shards: ShardTable, ms: np.ndarray) -> np.ndarray:
    """Vectors of rows that take so long, a quarter of it forward, and loads without ids."""
    some = shards.columns > 0
    found = np.zeros((len(ms), 2 + LOADS))
    found[:, 0], found[:, 1] = ms / 4, ms * 3 / 4
    found[:, 2 + COLUMNS], found[:, 2 + SHARDS] = shards.columns, some
    return found


def by_hand(widths: list[int], ms: list[float], memory: list[int]) -> ByHand:
    """Tables of 1 row; ms are of whole tables and in proportion for parts."""
    tables = tuple(EmbeddingTable(f"t{n}", 1, width, 1.0) for n, width in enumerate(widths))
    shards = ShardTable(
        ShardingTask(tables, Topology(num_devices=len(memory), memory_bytes=tuple(memory)), batch_size=8)
    )
    per_column = np.array(ms) / np.array(widths)
    return ByHand(shards, COSTS, vectors(shards, shards.columns * per_column[shards.tables]))


def test_shards_of_one_table_on_one_device_become_one_and_row_cuts_are_left_alone():
    task = by_hand([16], [1.0], [2**20] * 2).shards.task
    rows = (0, 1)
    halves = ShardingPlan.of(task, [Shard("t0", rows, (0, 8), 0), Shard("t0", rows, (8, 16), 0)])
    assert units_of(ShardTable(task), halves).tolist() == [[4], [0]]
    tall = ShardingTask((EmbeddingTable("t0", 8, 4),), task.topology, batch_size=8)
    by_rows = ShardingPlan.of(tall, [Shard("t0", (0, 5), (0, 4), 0), Shard("t0", (5, 8), (0, 4), 1)])
    assert units_of(ShardTable(tall), by_rows) is None


@pytest.mark.parametrize("model", ["simulator", "compute_simulator", "roofline"])
def test_pricing_says_what_the_cost_model_says(simulator, compute_simulator, model):
    simulators = {"simulator": simulator, "compute_simulator": compute_simulator}
    cost, shards = simulators.get(model) or make_cost("roofline"), ShardTable(random_task(5, 9, 3))
    rng = np.random.default_rng(2)
    units = [random_units(shards, rng) for _ in range(6)]
    units[-1] = np.zeros_like(units[0])
    units[-1][1] = shards.units
    evaluated = cost.evaluate(shards.task, [plan_of_units(shards, one) for one in units])
    pricing = Pricing(shards, cost.additive())
    for one, answer in zip(units, evaluated, strict=True):
        allocation = Allocation(pricing, one)
        np.testing.assert_allclose(allocation.compute, answer.per_device[:, [1, 4]], rtol=0, atol=QUANTUM)
        assert allocation.total_ms == pytest.approx(answer.total_ms, rel=0, abs=2 * QUANTUM)
        more = allocation.value - allocation.total_ms
        assert more == pytest.approx(excess(allocation.compute.sum(axis=1)[None]), abs=QUANTUM)


def test_the_soft_maximum_counts_devices_that_are_not_the_slowest():
    alike, alone = excess(np.array([[8.0, 8.0, 8.0, 8.0], [8.0, 1.0, 1.0, 1.0]]))
    assert alike == pytest.approx(8 * SOFTNESS * np.log(4))
    assert alone == pytest.approx(0, abs=1e-9)


def model_of(widths: list[int], ms: list[float], memory: list[int], **prices) -> LinearModel:
    """Tables of 1 row by hand; ms are of whole tables and in proportion for parts. Width is for nothing."""
    free = {"unit_ms": 0.0, "widest_ms": 0.0, "floor": 0}
    return dataclasses.replace(linear_model(by_hand(widths, ms, memory), []), **free | prices)


@pytest.mark.parametrize("hardware", ["rtx-2080-ti", "cpu-core"])
def test_links_price_the_device_and_the_widest_one_and_nothing_below_the_mean_width(hardware):
    """By the link model a device sends its own width and receives that of all others.

    All wait for the widest device: in the forward exchange where ids are hidden, else in that of gradients.
    """
    task = random_task(3, 12, 4)
    cost = make_cost("roofline", hardware=hardware)
    pricing = Pricing(ShardTable(task), cost.additive())
    model = linear_model(pricing, examples_of(pricing))
    topology = task.topology
    sent_ms = 4 * 4 * task.batch_size * 3 / 4 / topology.intra_bandwidth * 1e3
    assert (model.unit_ms, model.widest_ms) == pytest.approx((sent_ms, sent_ms), rel=0, abs=QUANTUM)
    assert model.floor == int(pricing.shards.units.sum()) // 4


@pytest.mark.parametrize("tables", [6, 40])
def test_the_model_of_a_cost_that_adds_up_is_exact(tables):
    """Fixed times of shards and devices included, for shards of all widths."""
    shards = ShardTable(random_task(5, tables, 3))
    pricing = Pricing(shards, make_cost("roofline").additive())
    model = linear_model(pricing, examples_of(pricing))
    rng = np.random.default_rng(0)
    for _ in range(5):
        units = random_units(shards, rng)
        busy = units.any(axis=1)
        ms = model.row_ms[model.first + units].sum(axis=1) + model.device_ms
        np.testing.assert_allclose(ms[busy], Allocation(pricing, units).compute.sum(axis=1)[busy], rtol=1e-3)


def test_a_corrected_model_is_exact_at_one_plan(simulator):
    shards = ShardTable(random_task(5, 12, 3))
    pricing = Pricing(shards, simulator.predictor())
    model = linear_model(pricing, examples_of(pricing))
    units = random_units(shards, np.random.default_rng(1))
    allocation = Allocation(pricing, units)
    compute = allocation.compute.sum(axis=1)
    estimate = corrected(model, allocation)
    np.testing.assert_allclose(estimate.row_ms[model.first + units].sum(axis=1) + estimate.device_ms, compute)
    assert np.abs(model.row_ms[model.first + units].sum(axis=1) + model.device_ms - compute).max() > 1e-6


def test_tables_are_cut_evenly_until_no_piece_is_too_much():
    model = model_of([64, 4], [16.0, 0.1], [2**20] * 4)
    placement = cut_and_place(model, 6.0, 2**60, 2**60, 0.0)
    assert sorted(placement.units[:, 0].tolist()) == [0, 5, 5, 6]
    assert placement.units[:, 1].sum() == 1
    placement = cut_and_place(model, np.inf, 4, 2**60, 0.0)
    assert placement.units[:, 0].tolist() == [4, 4, 4, 4]


def test_pieces_pay_for_width_when_it_has_a_price():
    for widest_ms, widths in ((0.0, [1, 18]), (4.0, [16, 3])):
        model = model_of([4, 64, 8], [3.0, 2.0, 1.5], [2**20] * 2, widest_ms=widest_ms)
        placement = cut_and_place(model, np.inf, 2**60, 2**60, 0.0)
        assert placement.devices[:, WIDTH].tolist() == widths


def test_what_fits_nowhere_whole_is_cut_to_fit_and_what_is_too_much_is_said():
    """A unit of a table takes 16 bytes; devices have room for three units and for one, or lack a byte."""
    for placement in constructed(model_of([8, 8], [2.0, 1.0], [48, 16])):
        assert placement.rank()[0] == 0
        assert placement.units.sum(axis=0).tolist() == [2, 2]
        assert placement.devices[:, BYTES].tolist() == [48, 16]
    for placement in constructed(model_of([8, 8], [1.0, 1.0], [32, 31])):
        assert placement.units.sum(axis=0).tolist() == [2, 2]
        assert placement.rank()[0] == np.maximum(placement.devices[:, BYTES] - [32, 31], 0).sum() > 0


@pytest.mark.parametrize("seed", range(4))
def test_moves_lead_where_they_say_within_memory(simulator, seed):
    """Exact prices are those of the allocation after the move, for random moves and the best by the model."""
    task = random_task(seed, 8, 3, spare=2.5)
    shards, rng = ShardTable(task), np.random.default_rng(seed)
    pricing = Pricing(shards, simulator.predictor())
    allocation = Allocation(pricing, random_units(shards, rng))
    model = corrected(linear_model(pricing, examples_of(pricing)), allocation)
    placement = Placement(model, allocation.units)
    best = placement.best_move(int(placement.devices[:, LOAD].argmax()))
    moves = np.array([best, *random_moves(pricing, allocation.units, 64, rng)])
    assert {*np.sign(moves[:, 4]).tolist()} >= {NONE, 1}, "no transfers, or no swaps"
    assert Placement(model, allocation.moved(best).units).rank() < placement.rank()
    compute, loads = allocation.after(moves)
    for number, move in enumerate(moves):
        after = allocation.moved(move)
        assert (after.units >= 0).all()
        assert after.units.sum(axis=0).tolist() == shards.units.tolist()
        assert (shards.bytes[shards.first + after.units].sum(axis=1) <= task.topology.memory_bytes).all()
        np.testing.assert_allclose(compute[number], after.compute, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(loads[number], after.sums[:, -LOADS:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("units", "after"),
    [
        ([[4, 4, 2], [0, 0, 0]], [5, 5]),  # shards move
        ([[16, 0, 0], [0, 0, 1]], [8, 8]),  # a table is split
        ([[12, 0, 0], [4, 0, 1]], [8, 8]),  # a cut is shifted
        ([[9, 0, 0], [0, 7, 0]], [8, 8]),
    ],
)
def test_descents_balance_loads(units, after):
    units = np.array(units)
    widths = np.maximum(4 * units.sum(axis=0), 4).tolist()
    model = model_of(widths, [width / 4 for width in widths], [2**20] * 2)
    placement = Placement(model, units)
    assert placement.descend()[0]
    assert np.abs(placement.devices[:, LOAD] - after).max() <= 1.0


def test_descents_make_room_first():
    """Device 0 holds more than it can; the other one has room for what is too much, though it is loaded already."""
    model = model_of([16, 16], [1.0, 9.0], [48, 96])
    placement = Placement(model, np.array([[4, 0], [0, 4]]))
    assert placement.rank()[0] == 16
    placement.descend()
    assert placement.rank()[0] == 0


def test_a_descent_says_that_it_needs_more_moves():
    model = model_of([16] * 6, [1.0] * 6, [2**20] * 3)
    placement = Placement(model, np.array([[4] * 6, [0] * 6, [0] * 6]))
    assert not placement.descend(1)[0]
    assert placement.descend()[0]
    assert placement.devices[:, WIDTH].tolist() == [8, 8, 8]


def test_kicks_cut_anew_and_only_what_is_better_stays():
    shards, rng = ShardTable(random_task(2, 12, 3, spare=1.5)), np.random.default_rng(0)
    model = linear_model(ByHand(shards, COSTS, vectors(shards, shards.bytes.astype(np.float64))), [])
    best = min(constructed(model), key=Placement.rank)
    seen = set()
    for draws in rng.random((30, DRAWS_PER_KICK)):
        other = Placement(model, best.units)
        other.cut_anew(draws)
        assert other.units.sum(axis=0).tolist() == shards.units.tolist()
        np.testing.assert_allclose(Placement(model, other.units).devices, other.devices)
        seen.add(other.units.tobytes())
    assert len(seen) > 10
    better, looked_at = kick_and_descend(model, best.units, rng.random((20, DRAWS_PER_KICK)))
    assert looked_at > 0
    ranks = [best.rank(), *(Placement(model, units).rank() for units in better)]
    assert ranks == sorted(set(ranks), reverse=True)
    assert len(ranks) > 1
    assert ranks[-1][0] == 0


def test_a_kick_without_any_room_changes_nothing():
    """The other device lacks one byte for half of the table."""
    model = model_of([8], [1.0], [32, 15])
    best = np.array([[2], [0]])
    better, _ = kick_and_descend(model, best, np.random.default_rng(0).random((20, DRAWS_PER_KICK)))
    assert not better
    assert best.tolist() == [[2], [0]]
