"""The bound of all plans: held against every plan of `milp`'s kinds, and against rectangles drawn at random."""

import dataclasses
import itertools

import numpy as np
import pytest
from test_milp import GPU, TASKS, best_of_all

from baselines.milp.plan_bound import lower_bound_ms
from shardgym import EmbeddingTable, RangeIds, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import InputError, NoFeasiblePlanError

COSTS = {"roofline": {}, "gpu": {"hardware": "h100"}, "gpu with ids": {"hardware": "h100", "ids": True}}
HOT = ZipfIds(s=1.05, q=2.0, row_order="by_frequency")
TABLES = (
    EmbeddingTable("hot", 40_000, 32, 30.0, ids=HOT),
    EmbeddingTable("ranges", 3000, 12, 8.0, ids=RangeIds((0.7, 0.2, 0.1))),
    EmbeddingTable("shared", 900_000, 16, 4.0, num_features=2),
    EmbeddingTable("tiny", 60, 8, 50.0),
    EmbeddingTable("adam", 5000, 64, 1.0, optimizer="adam", precision="fp16"),
)


def cost_of(name):
    return make_cost(name.split()[0], **COSTS[name])


def drawn_task(domain, batch_size=2048, **fields):
    topology = Topology(num_devices=4, memory_bytes=2**30, fast_domain_size=domain, inter_bandwidth=2e9, **GPU)
    return ShardingTask(TABLES, topology, batch_size=batch_size, **fields)


def drawn_cuts(rng, stop, unit):
    """Return neighbouring ranges of up to four pieces, the first ones often narrow."""
    count = int(rng.integers(0, 4))
    inner = {unit * int(stop // unit * rng.random() ** 3) for _ in range(count)}
    ends = sorted({0, stop, *inner})
    return list(itertools.pairwise(ends))


def drawn_plan(task, rng):
    """Return a plan in which tables are replicated or cut into rectangles that need not form a grid."""
    group = int(rng.choice([2, 4])) if rng.random() < 0.5 else None
    size = group or task.num_devices
    used = rng.permutation(size)[: int(rng.integers(1, size + 1))]
    shards = []
    for table in task.tables:
        if rng.random() < 0.3:
            shards.append(Shard.whole(table, *range(task.num_devices)))
            continue
        cut_rows = rng.random() < 0.5
        for columns in drawn_cuts(rng, table.embedding_dim, 4):
            for rows in drawn_cuts(rng, table.num_embeddings, 1) if cut_rows else [(0, table.num_embeddings)]:
                place = int(rng.choice(used))
                holders = tuple(range(place, task.num_devices, size))
                shards.append(Shard(table.name, rows, columns, holders))
    return ShardingPlan.of(task, shards, group_size=group)


@pytest.mark.parametrize("name", ["tight", "two domains", "heavy in domains"])
@pytest.mark.parametrize("cost_name", COSTS)
def test_no_plan_of_all_takes_less_and_the_bound_is_near(name, cost_name):
    cost = cost_of(cost_name)
    best_ms = best_of_all(TASKS[name], cost)
    assert 0.3 * best_ms < lower_bound_ms(TASKS[name], cost) <= best_ms


@pytest.mark.parametrize(("domain", "cost_name"), [(2, "roofline"), (2, "gpu"), (4, "gpu with ids")])
def test_no_drawn_plan_takes_less(domain, cost_name):
    task, cost, rng = drawn_task(domain, group_sync_interval=16), cost_of(cost_name), np.random.default_rng(domain)
    answers = cost.evaluate(task, [drawn_plan(task, rng) for _ in range(150)])
    found = [answer.total_ms for answer in answers if answer.feasible]
    assert len(found) > 50
    assert 0.2 * min(found) < lower_bound_ms(task, cost) <= min(found)


@pytest.mark.parametrize("cost_name", ["roofline", "gpu"])
@pytest.mark.parametrize("served", [1, 2, 0])
def test_pieces_of_a_table_take_at_least_what_it_takes_whole_without_limits(cost_name, served):
    task, costs = drawn_task(2), cost_of(cost_name).additive()
    unlimited = costs.unlimited(task)
    rng = np.random.default_rng(served)
    for table in task.tables:
        whole = ShardKey(table.name, table.num_embeddings, table.embedding_dim, served)
        vectors = unlimited.vectors(unlimited.encode_keys(task, [whole]))
        limited = costs.vectors(costs.encode_keys(task, [whole]))
        least_ms = unlimited.least_ms(vectors, vectors[0])[0]
        assert (least_ms <= costs.least_ms(limited, vectors[0])[0] * (1 + 1e-9)).all()
        for _ in range(20):
            pieces = [
                whole._replace(
                    rows=stop - start, first_row=start if table.name in ("hot", "ranges") else 0, columns=b - a
                )
                for a, b in drawn_cuts(rng, table.embedding_dim, 4)
                for start, stop in drawn_cuts(rng, table.num_embeddings, 1)
            ]
            taken = costs.least_ms(costs.vectors(costs.encode_keys(task, pieces)), vectors[0]).sum(axis=0)
            assert (taken >= least_ms * (1 - 1e-6)).all()


def test_a_piece_that_takes_longer_than_the_average_counts():
    tables = (EmbeddingTable("busy", 2**22, 8, 400.0), *(EmbeddingTable(f"t{n}", 2**16, 8, 0.1) for n in range(8)))
    links = {"intra_bandwidth": 4e11, "inter_bandwidth": 1e8, "fast_domain_size": 1}
    task = ShardingTask(tables, Topology(num_devices=16, memory_bytes=2**30, **links, **GPU), batch_size=4096)
    # The busy table in two pieces: its rows would wait for the network, and so would its replicas.
    shards = [Shard("busy", (0, 2**22), (4 * n, 4 * n + 4), (n,)) for n in range(2)]
    shards += [Shard.whole(table, n + 2) for n, table in enumerate(tables[1:])]
    cost = make_cost("gpu")
    found = cost.evaluate(task, [ShardingPlan.of(task, shards)])[0]
    compute_ms = found.phases["forward_compute"] + found.phases["backward_compute"]
    bound_ms = lower_bound_ms(task, cost)
    assert bound_ms <= found.total_ms
    assert bound_ms > 0.9 * compute_ms.max() > 4 * compute_ms.mean()


def test_what_has_no_bound_is_refused():
    task = drawn_task(4)
    with pytest.raises(InputError, match="cost 'torchrec_rating' has no lower bound"):
        lower_bound_ms(task, make_cost("torchrec_rating"))
    rows = EmbeddingTable("rows", 1000, 16, 3.0, pooling="none")
    with pytest.raises(InputError, match="no bound is known for unpooled tables"):
        lower_bound_ms(dataclasses.replace(task, tables=(rows,)), make_cost("gpu"))
    small = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=(1000,) * 4))
    with pytest.raises(NoFeasiblePlanError, match="larger than the memory of all devices"):
        lower_bound_ms(small, make_cost("gpu"))
