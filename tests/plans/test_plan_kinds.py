"""Plans whose shards several devices hold: how tables are sharded in TorchRec's words, and which holders make sense."""

import dataclasses

import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.errors import InfeasiblePlanError, InputError, UnknownNameError
from shardgym.plans.feasibility import plan_problems

#: Eight devices in two domains of four.
TASK = ShardingTask(
    (EmbeddingTable("a", 80, 16), EmbeddingTable("b", 8, 4)),
    Topology(num_devices=8, memory_bytes=2**20, fast_domain_size=4),
    batch_size=64,
)
WHOLE = (0, 80), (0, 16)


def by_columns(*devices):
    width = 16 // len(devices)
    return [Shard("a", (0, 80), (n * width, (n + 1) * width), held) for n, held in enumerate(devices)]


def by_rows(*devices, columns=(0, 16)):
    block = 80 // len(devices)
    return [Shard("a", (n * block, (n + 1) * block), columns, held) for n, held in enumerate(devices)]


KINDS = {
    "one device": ("table_wise", None, [Shard("a", *WHOLE, 3)]),
    "columns over two domains": ("column_wise", None, by_columns(0, 4)),
    "columns in one domain": ("table_column_wise", None, by_columns(4, 7)),
    "columns on one device": ("table_column_wise", None, by_columns(5, 5)),
    "rows on all": ("row_wise", None, by_rows(*range(8))),
    "rows in one domain": ("table_row_wise", None, by_rows(4, 5, 6, 7)),
    "a grid": ("grid_shard", None, [*by_rows(0, 1, columns=(0, 8)), *by_rows(6, 7, columns=(8, 16))]),
    "a grid over domains": ("tiers", None, [*by_rows(0, 4, columns=(0, 8)), *by_rows(2, 7, columns=(8, 16))]),
    "no grid": ("tiers", None, [Shard("a", (0, 40), (0, 16), 0), *(
        dataclasses.replace(s, rows=(40, 80)) for s in by_columns(1, 2))]),
    "all devices": ("data_parallel", None, [Shard("a", *WHOLE, range(8))]),
    "pieces on all devices": ("data_parallel", None, by_columns(range(8), range(8))),
    "one of each domain": ("tiers", None, [Shard("a", *WHOLE, (1, 5))]),
    "one of each group": ("table_wise", 4, [Shard("a", *WHOLE, (1, 5))]),
    "another place of each group": ("tiers", 4, [Shard("a", *WHOLE, (1, 6))]),
    "columns in groups": ("column_wise", 4, by_columns((0, 4), (3, 7))),
    "rows in groups": ("row_wise", 2, by_rows((0, 2, 4, 6), (1, 3, 5, 7))),
    "all devices of groups": ("data_parallel", 4, [Shard("a", *WHOLE, range(8))]),
    "two of each group": ("tiers", 4, [Shard("a", *WHOLE, (0, 2, 4, 6))]),
}  # fmt: skip


def plan_of(shards, group_size=None):
    rest = Shard("b", (0, 8), (0, 4), range(8))
    return ShardingPlan.of(TASK, [*shards, rest], group_size)


@pytest.mark.parametrize("case", KINDS)
def test_kinds_follow_from_rectangles_and_holders(case):
    kind, group_size, shards = KINDS[case]
    plan = plan_of(shards, group_size)
    plan.validate(TASK)
    assert plan.kind_of("a", TASK) == kind
    assert plan.kind_of("b", TASK) == "data_parallel"
    again = ShardingPlan.from_json(plan.to_json())
    assert (again, again.digest) == (plan, plan.digest)


def test_kinds_are_of_tables_that_are_there():
    plan = ShardingPlan.of(TASK, [Shard("a", *WHOLE, 0)])
    with pytest.raises(UnknownNameError):
        plan.kind_of("c", TASK)
    with pytest.raises(InputError, match="no shard of table 'b'"):
        plan.kind_of("b", TASK)
    alone = dataclasses.replace(TASK, topology=Topology(num_devices=1, memory_bytes=2**20))
    assert plan.kind_of("a", alone) == "table_wise"


def test_one_group_of_all_devices_is_the_plan_without_groups():
    assert plan_of(by_rows(0, 1), 8) == plan_of(by_rows(0, 1))
    assert plan_of([Shard("a", *WHOLE, (1, 5))], 4).digest != plan_of([Shard("a", *WHOLE, (1, 5))]).digest


def test_every_holder_needs_room_and_has_the_shard():
    plan = plan_of([Shard("a", *WHOLE, (1, 5))], 4)
    assert plan.bytes_per_device(TASK) == [128, 5248, 128, 128] * 2
    assert [len(plan.on(device)) for device in range(8)] == [1, 2, 1, 1] * 2
    small = dataclasses.replace(TASK, topology=dataclasses.replace(TASK.topology, memory_bytes=(5247,) * 8))
    assert [problem.split(" holds")[0] for problem in plan_problems(small, plan.shards, 4)] == ["device 1", "device 5"]


@pytest.mark.parametrize(
    ("devices", "group_size", "message"),
    [
        ((0, 1), None, r"are held by devices 0, 1: expected one device, all of them, or, with group_size="),
        ((0, 4, 7), None, "held by devices 0, 4, 7: expected"),
        ((8,), None, "on device 8, the task has devices 0 to 7"),
        ((2,), 4, "held by device 2: expected one device in each of 2 groups of 4"),
        ((2, 3), 4, "held by devices 2, 3: expected one device in each of 2 groups of 4"),
        ((0, 4), 2, "held by devices 0, 4: expected one device in each of 4 groups of 2"),
        (range(8), 1, "groups of 1 device: each holds all tables by itself, which is data parallel; leave group_size"),
        ((0,), 3, "groups of 3 devices do not divide the 8 devices of the task"),
    ],
)
def test_holders_in_some_groups_only_are_refused(devices, group_size, message):
    with pytest.raises(InfeasiblePlanError, match=message):
        plan_of([Shard("a", *WHOLE, devices)], group_size).validate(TASK)


def test_adjacent_rows_of_the_same_holders_are_one_shard():
    """Kinds, prices and exports follow; adjacent columns stay apart, as FBGEMM runs them."""
    whole = Shard("a", *WHOLE, 3)
    thirds = [Shard("a", rows, (0, 16), 3) for rows in ((50, 80), (0, 10), (10, 50))]
    joined = plan_of(thirds)
    assert (joined, joined.of_table("a")) == (plan_of([whole]), (whole,))
    assert joined.kind_of("a", TASK) == "table_wise"
    for name in ("roofline", "torchrec_rating"):
        costs = make_cost(name).evaluate(TASK, [joined, plan_of([whole])])
        assert costs[0].total_ms == costs[1].total_ms < float("inf")
    assert ShardingPlan.from_json(joined.to_json()) == joined
    halves = [Shard("a", (0, 40), (0, 16), (1, 5)), Shard("a", (40, 80), (0, 16), (1, 5))]
    assert plan_of(halves, 4).of_table("a") == (Shard("a", *WHOLE, (1, 5)),)
    apart = [by_columns(3, 3), by_rows(0, 1, 0, 1), by_rows((0, 4), (1, 5))]
    assert [len(plan_of(shards).of_table("a")) for shards in apart] == [2, 4, 2]
