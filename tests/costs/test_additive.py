"""Additive prices are those of `evaluate`, for every cost that offers them and for one's own."""

import dataclasses

import numpy as np
import pytest

from shardgym import CostModel, PlanCost, Shard, ShardingPlan, ShardingTask, Topology, load_suite, make_cost
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import IDS, LOADS, exchange_times
from shardgym.costs.shard_keys import PlanBatch, ShardKey
from shardgym.costs.ties import QUANTUM

EXACT = 1e-9


class ColumnsCost(CostModel):
    """A cost of one's own: columns, and 10 ms for a device that holds any; exchanges by the link model."""

    name, version, deterministic, hardware = "columns", "1", True, "none"

    def additive(self):
        return Columns(num_latents=1)

    def score(self, task, plans):
        return [PlanCost(ms, self.name, self.version, self.hardware) for ms in self.additive().plans_ms(task, plans)]


class Columns(AdditiveCosts):
    def describe(self, task, keys):
        return {"latents": np.array([[float(key.columns)] for key in keys])}

    def device_ms(self, sums, counts):
        forward = sums[..., 0] + 10.0 * (counts > 0)
        return np.stack([forward, 2 * forward], axis=-1)


class HiddenIdsCost(ColumnsCost):
    """The same with ids that count, 1 ms per id of a sample, and that are hidden where links are of one domain."""

    name = "hidden_ids"

    def additive(self):
        return HiddenIds(num_latents=1)

    def score(self, task, plans):
        prices = self.additive()
        return self.plan_costs(prices, prices.batch(task, plans))


class HiddenIds(Columns):
    def ids_hidden(self, task):
        return task.topology.fast_domain_size == task.num_devices

    def exchange_of(self, task, compute_ms, loads):
        transfer = super().exchange_of(task, compute_ms, loads).backward_ms
        return exchange_times(compute_ms, transfer, ids_hidden=self.ids_hidden(task), ids_ms=loads[..., IDS])


COSTS = {
    "roofline": lambda: make_cost("roofline"), "h100": lambda: make_cost("roofline", hardware="h100"),
    "gpu": lambda: make_cost("gpu", hardware="a100"),
    "gpu with ids": lambda: make_cost("gpu", hardware="a100", ids=True),
    "gpu in fp16": lambda: make_cost("gpu", hardware="a100", ids=True, wire="fp16"),
    "simulator": lambda: make_cost("simulator"), "columns": ColumnsCost, "hidden ids": HiddenIdsCost,
    "torchrec_rating": lambda: make_cost("torchrec_rating"),
}  # fmt: skip


@pytest.fixture(scope="module", params=COSTS)
def cost(request):
    return COSTS[request.param]()


def random_plan(task, rng, copied=0):
    """Put some tables everywhere, cut some of the others into halves of their columns, and place these at random."""
    shards = [Shard.whole(table, *range(task.num_devices)) for table in task.tables[:copied]]
    for table in task.tables[copied:]:
        cuts = [0, table.embedding_dim]
        if table.embedding_dim >= 8 and rng.random() < 0.3:
            cuts.insert(1, 4 * (table.embedding_dim // 8))
        rows = (0, table.num_embeddings)
        devices = rng.integers(0, task.num_devices, len(cuts) - 1).tolist()
        shards += [Shard(table.name, rows, (*pair,), d) for *pair, d in zip(cuts[:-1], cuts[1:], devices, strict=True)]
    return ShardingPlan.of(task, shards)


@pytest.mark.parametrize("suite", ["tiny-v1", "dlrm8-v1", "published-v1"])
def test_plans_of_several_tasks_in_one_call_cost_what_evaluate_says(cost, suite):
    """Some with replicas where the cost knows them; the last plan of a task leaves all devices but one empty."""
    rng, prices = np.random.default_rng(3), cost.additive()
    tasks = [load_suite(suite)[index] for index in (0, 2)]
    tasks = [task for task in tasks if task.num_devices == tasks[0].num_devices]
    for links in ({"fast_domain_size": 1, "device": "a100"}, {"intra_bandwidth": 2e9}):
        tasks.append(dataclasses.replace(tasks[0], topology=dataclasses.replace(tasks[0].topology, **links)))
    numbers, sums, expected = [], [], []
    for task in tasks:
        plans = [random_plan(task, rng, copied) for copied in ((3, 1, 0) if cost.replicas else (0, 0, 0))]
        plans.append(ShardingPlan.of(task, [dataclasses.replace(shard, devices=(1,)) for shard in plans[2].shards]))
        expected += cost.score(task, plans)
        assert not any(one.per_device.flags.writeable for one in expected)
        for plan in plans:
            batch = prices.batch(task, [plan])
            added = np.zeros((task.num_devices, prices.vectors(batch.shards).shape[1]))
            np.add.at(added, batch.devices, prices.vectors(batch.shards))
            numbers.append(prices.add_task(task))
            sums.append(added)
    numbers, sums = np.array(numbers), np.array(sums)
    found = prices.per_device_ms(numbers, sums)
    np.testing.assert_allclose(found, [one.per_device for one in expected], rtol=EXACT)
    alone = [prices.phases_in_groups(number, 1, ms[None])[0] for number, ms in zip(numbers.tolist(), sums, strict=True)]
    np.testing.assert_allclose(found, alone, rtol=EXACT)
    totals = [one.total_ms for one in expected]
    np.testing.assert_allclose(prices.total_ms(numbers, sums), totals, rtol=EXACT)
    compute_ms, loads = prices.compute_ms(sums), sums[..., -LOADS:]
    slowest = prices.slowest_ms(numbers, compute_ms, loads)
    np.testing.assert_allclose(slowest, totals, rtol=0, atol=2 * QUANTUM)
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        np.testing.assert_array_equal(prices.slowest_ms(number, compute_ms[mine], loads[mine]), slowest[mine])


def test_a_step_by_hand():
    """Compute of 14 and 10 ms forward, twice that backward; two devices send 4 ms, both ways, 3 ids of 1 ms on one."""
    task = load_suite("tiny-v1")[0]
    tables = tuple(
        dataclasses.replace(task.tables[0], name=name, embedding_dim=4, pooling_factor=pooling)
        for name, pooling in (("a", 3.0), ("b", 0.0))
    )
    links = {"num_devices": 2, "memory_bytes": 2**30, "intra_bandwidth": 1e3, "inter_bandwidth": 1e3}
    found = {}
    for domain in (1, 2):
        topology = Topology(**links, intra_latency_ms=0, inter_latency_ms=0, fast_domain_size=domain)
        toy = ShardingTask(tables, topology, batch_size=2)
        plan = ShardingPlan.table_wise(toy, [0, 1])
        moved = ShardingPlan.table_wise(toy, [0, 0])
        found[domain] = HiddenIdsCost().evaluate(toy, [plan, moved])
    # One sample of 4 columns x 4 bytes is sent at a byte per ms: 16 ms, and 32 ms for both tables.
    step, pipeline = found[1], found[2]
    assert step[0].per_device.tolist() == [[3, 14, 16, 16, 28], [0, 14, 19, 16, 28]]
    assert step[0].total_ms == 17 + 16 + 16 + 28
    assert pipeline[0].per_device.tolist() == [[3, 14, 16, 16, 28], [0, 14, 16, 16, 28]]
    assert (pipeline[0].total_ms, pipeline[0].ids_hidden) == (14 + 16 + 16 + 28, True)
    assert step[1].per_device.tolist() == [[3, 18, 32, 32, 36], [0, 0, 32 + 21, 32, 0]]
    assert (step[1].total_ms, step[1].ids_hidden) == (21 + 32 + 32 + 36, False)
    # The empty device is ready 18 + 36 ms before the other one, as it computes neither forward nor backward.
    assert pipeline[1].per_device.tolist() == [[3, 18, 32, 32, 36], [0, 0, 32 + 54, 32, 0]]


def test_shards_of_other_tasks_are_described_once_where_that_is_shared(cost):
    """Of the same tables on the same devices; another batch is another description."""
    first = load_suite("tiny-v1")[0]
    renamed = tuple(dataclasses.replace(table, name=f"other {table.name}") for table in first.tables[2:])
    mixed = dataclasses.replace(first, tables=(*first.tables[:2], *renamed))
    larger = dataclasses.replace(first, batch_size=2 * first.batch_size)
    shared, alone = cost.additive(), cost.additive()
    shared.share_shards()
    asked = []
    describe = shared.describe
    shared.describe = lambda task, keys: (asked.append(len(keys)), describe(task, keys))[1]
    numbers = {}
    for name, task in (("first", first), ("mixed", mixed), ("larger", larger)):
        keys = [ShardKey(table.name, table.num_embeddings, table.embedding_dim) for table in task.tables]
        mine, theirs = shared.encode_keys(task, keys), alone.encode_keys(task, keys)
        np.testing.assert_allclose(shared.vectors(mine), alone.vectors(theirs), rtol=EXACT)
        numbers[name] = mine.tolist()
        # Shared shards do not say which task they are of.
        batch = PlanBatch(task.num_devices, np.array([len(mine)]), mine, np.zeros_like(mine))
        own = batch._replace(tasks=np.array([shared.add_task(task)]))
        expected = alone.batch_ms(batch._replace(shards=theirs))
        np.testing.assert_allclose(shared.batch_ms(own), expected, rtol=EXACT)
    assert asked == [first.num_tables, mixed.num_tables - 2, first.num_tables]
    assert numbers["mixed"][:2] == numbers["first"][:2]
    assert not set(numbers["larger"]) & set(numbers["first"] + numbers["mixed"])
    assert shared.num_shards == sum(asked)


def test_a_cost_that_scores_in_its_own_way_is_additive_only_when_it_says_so():
    class Twice(type(make_cost("roofline"))):
        def score(self, task, plans):
            costs = super().score(task, plans)
            return [dataclasses.replace(cost, per_device=2 * cost.per_device) for cost in costs]

    class Renamed(type(make_cost("roofline"))):
        name = "renamed"

    assert Twice().additive() is None
    assert Renamed().additive() is not None
    assert ColumnsCost().additive() is not None
    assert make_cost("simulator", role="judge").additive() is None
