"""`milp` against every plan of its kinds, its bound against every plan's cost, and kinds chosen where they win."""

import dataclasses
import itertools

import numpy as np
import pytest

import shardgym
from baselines.milp.kinds import exchanges_of, kinds_of, shards_of
from baselines.milp.program import Program
from baselines.milp.solver import Milp, equal_devices
from shardgym import EmbeddingTable, RangeIds, Shard, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.costs.links import LOADS, link_prices, transfer_ms
from shardgym.costs.shard_keys import ShardKey

SHAPES = [(3000, 16, 12.0), (9000, 8, 3.0), (500, 8, 20.0), (20_000, 4, 1.0), (4000, 16, 6.0), (800, 16, 2.0)]
GPU = {"device": "h100", "intra_latency_ms": 0.001, "inter_latency_ms": 0.002}


def make_task(shapes, memory_bytes, batch_size=4096, **links):
    tables = tuple(EmbeddingTable(f"t{n}", *shape) for n, shape in enumerate(shapes))
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes), **links)
    return ShardingTask(tables, topology, batch_size=batch_size)


def program_parts(task, cost):
    costs = cost.additive()
    exchanges = exchanges_of(task, costs)
    return kinds_of(task, costs, exchanges, replicas=cost.replicas), exchanges


def every_plan(task, cost):
    """Yield all plans of the solver's kinds, device by device: 4 columns are a unit."""
    kinds, _ = program_parts(task, cost)
    devices, domain = range(task.num_devices), task.topology.fast_domain_size
    forms = []
    for number, table in enumerate(task.tables):
        of_table = []
        for cut in itertools.product(range(table.embedding_dim // 4 + 1), repeat=task.num_devices):
            if sum(cut) == table.embedding_dim // 4:
                ends = np.cumsum([0, *cut]) * 4
                rows = 0, table.num_embeddings
                of_table.append(
                    [Shard(table.name, rows, (int(ends[d]), int(ends[d + 1])), (d,)) for d in devices if cut[d]]
                )
        for spread in (spread for spread in kinds.spreads if spread.table == number):
            domains = task.num_devices // domain if spread.devices == "domain" else 1
            of_table += [shards_of(task, spread, n) for n in range(domains)]
        forms.append(of_table)
    for shards in itertools.product(*forms):
        yield ShardingPlan.of(task, itertools.chain(*shards))


def best_of_all(task, cost):
    return min(answer.total_ms for answer in cost.evaluate(task, list(every_plan(task, cost))))


HEAVY = (400_000, 8, 80.0)
#: Of "fast links" and "heavy in domains" the best plan cuts rows, of "small and busy" it has replicas.
TASKS = {
    "tight": make_task(SHAPES[:3], [265_000, 245_000]),
    "uneven": make_task(SHAPES[2:5], [400_000, 300_000, 100_000], batch_size=4097),
    "fast links": make_task([HEAVY, *SHAPES[:2]], [2**30] * 3, intra_bandwidth=1e12, **GPU),
    "two domains": make_task(SHAPES[:2], [2**30] * 4, fast_domain_size=2, inter_bandwidth=2e9, **GPU),
    "heavy in domains": make_task([HEAVY, SHAPES[3]], [2**30] * 4, fast_domain_size=2, intra_bandwidth=1e13,
                                  inter_bandwidth=1e11, **GPU),
    "a domain of one": make_task(SHAPES[:3], [2**30] * 3, fast_domain_size=2, inter_bandwidth=2e9, **GPU),
    "hot rows": make_task([(4000, 8, 20.0, RangeIds((0.97, 0.01, 0.01, 0.01))), SHAPES[2]], [50_000] * 4),
    "one device": make_task(SHAPES[:2], [2**30]),
    "small and busy": make_task([(100, 4, 40.0)] * 3, [2**30] * 4, 65536, device="h100", intra_bandwidth=1e9),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_the_optimum_is_that_of_all_plans_and_no_bound_is_above(name):
    task, solver = TASKS[name], Milp(target_gap=0.0)
    for cost in (make_cost("roofline"), make_cost("gpu", hardware="h100")):
        best_ms = best_of_all(task, cost)
        kinds, exchanges = program_parts(task, cost)
        single = [[device] for device in range(task.num_devices)]
        bounds = [
            Program(task, kinds, exchanges, groups).solve(gap=0.0, nodes=5000).bound_ms
            for groups in (equal_devices(task, exchanges), single)
        ]
        assert all(0.3 * best_ms < bound_ms <= best_ms for bound_ms in bounds)
        if cost.name == "roofline":
            assert bounds[1] == pytest.approx(best_ms, rel=1e-5)
            (found,) = cost.evaluate(task, [solver.solve(task, cost)])
            assert found.total_ms == pytest.approx(best_ms, rel=2e-6)
            assert solver.lower_bound_ms <= best_ms * (1 + 1e-9)
            assert solver.gap <= 1e-5


@pytest.mark.parametrize("settings", [{}, {"ids": True}, {"wire": "fp16"}])
def test_shards_add_up_to_no_more_than_devices_compute_by_gpu(settings):
    costs = make_cost("gpu", hardware="h100", **settings).additive()
    rng = np.random.default_rng(0)
    tables = tuple(
        EmbeddingTable(f"t{n}", int(10 ** rng.uniform(2, 7)), 4 * int(rng.integers(1, 65)), float(rng.uniform(0.1, 99)))
        for n in range(60)
    )
    task = ShardingTask(tables, Topology(num_devices=8, memory_bytes=2**50), batch_size=4096)
    keys = [ShardKey(t.name, t.num_embeddings, t.embedding_dim) for t in tables]
    keys += [ShardKey(t.name, t.num_embeddings, 4, served=1) for t in tables]
    keys += [ShardKey(t.name, -(-t.num_embeddings // 8), t.embedding_dim) for t in tables]
    vectors = costs.vectors(costs.encode_keys(task, keys))
    least_ms = costs.least_ms(vectors, vectors[:60].sum(axis=0))
    fixed_ms = costs.operator_ms(vectors[0, :-LOADS], np.array(1))
    shares = []
    for count in (1, 2, 5, 20, 80):
        for _ in range(20):
            some = rng.choice(len(keys), count, replace=False)
            exact_ms = costs.device_ms(vectors[some, :-LOADS].sum(axis=0), np.array(count))
            shares.append((least_ms[some].sum(axis=0) + fixed_ms) / exact_ms)
    assert np.max(shares) <= 1 + 1e-12
    assert np.min(shares[-20:]) > 0.8


def large_task(count, devices, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [
        (int(10 ** rng.uniform(3, 6)), int(2 ** rng.integers(3, 8)), float(rng.uniform(1, 40))) for _ in range(count)
    ]
    tables = tuple(EmbeddingTable(f"t{n}", *shape) for n, shape in enumerate(shapes))
    return ShardingTask(tables, Topology.preset("dgx-h100", devices), batch_size=65536)


def test_a_gap_is_proven_where_single_domains_hold_tables():
    task, cost, solver = shardgym.load_suite("nodes16-v1")[5], make_cost("roofline"), Milp(target_gap=0.1, kicks=0)
    plan = solver.solve(task, cost)
    assert "table_row_wise" in {plan.kind_of(table.name, task) for table in task.tables}
    assert solver.proven


def test_the_bound_by_gpu_is_below_the_plans_of_solvers_and_highs_prints_nothing(capfd):
    task, cost, solver = large_task(20, 16), make_cost("gpu"), Milp(kicks=0)
    (found,) = cost.evaluate(task, [solver.solve(task, cost)])
    others = [make_solver(name).solve(task, cost) for name in ("neuroshard_plus", "hierarchical")]
    assert 0 < solver.lower_bound_ms <= min(answer.total_ms for answer in cost.evaluate(task, others))
    assert solver.gap == pytest.approx(found.total_ms / solver.lower_bound_ms - 1)
    assert capfd.readouterr().out == ""


def test_a_time_limit_ends_with_a_feasible_plan_and_no_false_proof():
    task, cost, solver = large_task(40, 8), make_cost("roofline"), Milp(target_gap=0.0)
    plan = solver.solve(task, cost, time_limit_s=0.0)
    plan.validate(task)
    assert solver.gap is None
    assert not solver.proven


@pytest.mark.parametrize(
    ("name", "settings", "device"), [("simulator", {}, "cpu-core"), ("gpu", {"exchange": "two_step"}, "h100")]
)
def test_by_a_cost_without_a_bound_nothing_is_claimed(name, settings, device, caplog):
    task, cost, told = make_task(SHAPES, [2**30] * 3, device=device), make_cost(name, **settings), []
    worst = ShardingPlan.table_wise(task, [0] * 6)
    solver = Milp(kicks=0)
    with caplog.at_level("INFO", logger="shardgym.solvers"):
        plan = solver.solve(task, cost, initial_plan=worst, observer=lambda plan, ms: told.append((ms, plan)))
    costs = [ms for ms, _ in told]
    assert told[0][1] == worst
    assert costs == sorted(costs, reverse=True)
    assert told[-1] == (pytest.approx(cost.evaluate(task, [plan])[0].total_ms), plan)
    assert solver.lower_bound_ms is None
    assert not solver.proven
    assert f"milp: no lower bound, as '{name}' is not a bounded cost" in caplog.text
    unpooled = dataclasses.replace(task.tables[0], pooling="none")
    with caplog.at_level("INFO", logger="shardgym.solvers"):
        solver.solve(dataclasses.replace(task, tables=(unpooled, *task.tables[1:])), make_cost("roofline"))
    assert "milp: no lower bound, as some tables are unpooled" in caplog.text


def test_the_lines_of_the_link_model_are_its_transfer():
    rng = np.random.default_rng(0)
    for devices, domain in [(1, 1), (2, 2), (4, 2), (5, 2), (5, 3), (6, 1), (7, 7)]:
        topology = Topology(
            num_devices=devices, memory_bytes=1, fast_domain_size=domain, intra_latency_ms=0.01, inter_bandwidth=1e9
        )
        prices = link_prices(topology, 1001, 4)
        for widths in rng.integers(0, 200, (20, devices)) * rng.integers(0, 2, (20, devices)):
            inside = np.bincount(prices.domains, weights=widths)[prices.domains]
            others = np.array([inside - widths, widths.sum() - inside])
            lines = prices.latency_ms + np.maximum(prices.sent_ms * widths, prices.received_ms * others)
            np.testing.assert_allclose(lines.max(axis=0), transfer_ms(topology, widths, 1001, 4), rtol=1e-12)
