"""Plans: what is feasible, what is said about those that are not, and how tables are sharded in TorchRec's words."""

import dataclasses
import random
import re

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.errors import InfeasiblePlanError, InputError, UnknownNameError
from shardgym.plans.feasibility import cover_problems, plan_problems


def shards_of(plan: ShardingPlan, *changed: Shard) -> list[Shard]:
    """Return the plan's shards with those of the changed tables replaced."""
    names = {shard.table for shard in changed}
    return [shard for shard in plan.shards if shard.table not in names] + list(changed)


def problems(task: ShardingTask, *changed: Shard) -> tuple[str, ...]:
    """Validate a table-wise plan with some tables replaced; return what is wrong with it."""
    plan = ShardingPlan.of(task, shards_of(ShardingPlan.table_wise(task, [0, 0, 1]), *changed))
    try:
        plan.validate(task)
    except InfeasiblePlanError as error:
        return error.problems
    return ()


def test_table_wise_plans_are_the_same_in_any_order(toy_task: ShardingTask):
    plan = ShardingPlan.table_wise(toy_task, {"wide": 0, "square": 0, "tall": 1})
    plan.validate(toy_task)
    assert plan.bytes_per_device(toy_task) == [640, 320]  # tables take 320 bytes
    other = ShardingPlan.of(toy_task, reversed(plan.shards))
    assert plan == ShardingPlan.table_wise(toy_task, [0, 0, 1]) == other == ShardingPlan.from_json(plan.to_json())
    assert other.digest == plan.digest
    for devices, end in (
        ([0, 1], "got 2; to price part of the tables, make a task of them$"),
        ([0, 1, 0, 1], "got 4$"),
        ({"wide": 0, "square": 1, "other": 0}, "got 3: table 'other' is not in the task$"),
    ):
        with pytest.raises(InputError, match=f"one device for each of 3 tables, {end}"):
            ShardingPlan.table_wise(toy_task, devices)


def test_a_whole_table_is_the_same_shard_checked_or_not(toy_task: ShardingTask):
    table = toy_task.tables[0]
    checked = Shard("wide", (0, 5), (0, 16), 3)
    for device in (3, np.int64(3)):
        shard = Shard.whole(table, device)
        assert (shard, hash(shard), shard.to_json()) == (checked, hash(checked), checked.to_json())
        assert type(shard.devices[0]) is int
    for device in (-1, True, 1.5, "0", None):
        with pytest.raises(InputError, match=r"^Shard: devices"):
            Shard.whole(table, device)


def test_uneven_cuts_and_several_shards_of_a_table_on_one_device_are_feasible(toy_task: ShardingTask):
    """Columns 4 + 12, the wide half cut by rows as well, two of the three pieces on device 1."""
    areas = (((0, 5), (0, 4), 0), ((0, 2), (4, 16), 1), ((2, 5), (4, 16), 1))
    assert problems(toy_task, *(Shard("wide", *area) for area in areas)) == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            [Shard("wide", (0, 5), (0, 8), 0)],
            "rows [0, 5) columns [8, 16) of table 'wide' are missing: no device holds them; add a ",
        ),
        ([Shard("wide", (0, 3), (0, 16), 0)], "rows [3, 5) columns [0, 16) of table 'wide' are missing"),
        (
            [Shard("wide", (0, 5), (0, 8), 0), Shard("wide", (0, 5), (4, 16), 1)],
            "rows [0, 5) columns [4, 8) of table 'wide' overlap: held by devices 0, 1; keep them in one of",
        ),
        (
            [Shard("wide", (0, 5), (0, 16), 0), Shard("wide", (4, 5), (12, 16), 0)],
            "rows [4, 5) columns [12, 16) of table 'wide' overlap: held by devices 0, 0",
        ),
        (
            [Shard("wide", (0, 5), (0, 16), (0, 1)), Shard("wide", (0, 5), (0, 16), 1)],
            "rows [0, 5) columns [0, 16) of table 'wide' overlap: held by devices 0, 1, 1",
        ),
        ([Shard("wide", (0, 6), (0, 16), 0)], "table 'wide' is 5 x 16, but a shard covers rows [0, 6) columns [0, 16)"),
        ([Shard("wide", (0, 5), (0, 16), 2)], "table 'wide' is on device 2, the task has devices 0 to 1"),
        ([Shard("wide", (0, 5), (0, 6), 0), Shard("wide", (0, 5), (6, 16), 0)], "FBGEMM needs widths divisible by 4"),
        ([Shard("narrow", (0, 5), (0, 4), 0)], "table 'narrow' is not in the task"),
    ],
)
def test_a_plan_that_does_not_cover_the_task_says_where(toy_task: ShardingTask, changed: list[Shard], message: str):
    assert any(message in problem for problem in problems(toy_task, *changed))


def test_memory_overflow_names_device_tables_and_bytes(toy_task: ShardingTask):
    """3 x 320 bytes on a device of 700."""
    with pytest.raises(InfeasiblePlanError) as error:
        ShardingPlan.table_wise(toy_task, [0, 0, 0]).validate(toy_task)
    assert str(error.value) == (
        "device 0 holds 960 bytes, 260 more than its 700; largest of its shards: 'wide' 320, 'tall' 320, 'square' 320"
    )


def test_memory_is_exact_to_the_byte(toy_task: ShardingTask):
    """640 bytes fit into 640 and not into 639; optimiser state counts."""
    for limit, fits in ((640, True), (639, False)):
        task = dataclasses.replace(toy_task, topology=Topology(num_devices=2, memory_bytes=limit))
        assert (problems(task) == ()) is fits
    assert any("holds 1280 bytes" in p for p in problems(dataclasses.replace(toy_task, optimizer="adagrad")))


def test_all_problems_are_listed_and_the_message_counts_the_rest(toy_task: ShardingTask):
    with pytest.raises(InfeasiblePlanError, match="and 2 more problems") as error:
        ShardingPlan.of(toy_task, [Shard("wide", (0, 5), (0, 16), 9)]).validate(toy_task)
    assert len(error.value.problems) == 3


BAD_DEVICES = [{"devices": devices} for devices in ((-1,), (), (1, 0), (1, 1), "1", 1.5)]


@pytest.mark.parametrize("bad", [{"rows": (3, 3)}, {"rows": (4, 2)}, {"columns": (-4, 4)}, *BAD_DEVICES])
def test_a_shard_that_makes_no_sense_is_refused(bad):
    with pytest.raises(InputError):
        Shard.from_dict({"table": "a", "rows": (0, 4), "columns": (0, 4), "devices": (0,)} | bad)


def cut(rng, rows, columns, depth=0):
    """Return rectangles that tile one, cut at random."""
    if depth > 3 or rng.random() < 0.2:
        return [(rows, columns)]
    if rng.random() < 0.5 and rows[1] - rows[0] > 1:
        row = rng.randrange(rows[0] + 1, rows[1])
        return cut(rng, (rows[0], row), columns, depth + 1) + cut(rng, (row, rows[1]), columns, depth + 1)
    if columns[1] - columns[0] > 4:
        column = rng.randrange(columns[0] + 4, columns[1], 4)
        return cut(rng, rows, (columns[0], column), depth + 1) + cut(rng, rows, (column, columns[1]), depth + 1)
    return [(rows, columns)]


def test_every_cell_is_held_once_and_what_is_wrong_is_named_where_it_is():
    rng = random.Random(5)
    table = EmbeddingTable("t", 12, 24)
    task = ShardingTask((table,), Topology(num_devices=3, memory_bytes=2**20), batch_size=4)
    wrong = 0
    for _ in range(600):
        pieces = cut(rng, (0, 12), (0, 24))
        odd = rng.choice(["", "remove", "double", "move"])
        chosen = rng.randrange(len(pieces))
        (top, bottom), columns = pieces[chosen]
        if odd == "remove":
            pieces.pop(chosen)
        elif odd == "double":
            pieces.append(pieces[chosen])
        elif odd == "move" and bottom < 12:
            pieces[chosen] = (top + 1, bottom + 1), columns
        rng.shuffle(pieces)
        count = np.zeros((12, 24), dtype=int)
        for rows, columns in pieces:
            count[slice(*rows), slice(*columns)] += 1
        problems = cover_problems(task, [Shard("t", rows, columns, rng.randrange(3)) for rows, columns in pieces])
        assert (problems == []) == (count == 1).all()
        if problems:
            wrong += 1
            top, bottom, left, right = map(int, re.findall(r"\d+", problems[0])[:4])
            cell = count[top:bottom, left:right]
            assert (cell == 0).all() if "missing" in problems[0] else (cell > 1).all()
    assert wrong > 300


@pytest.mark.parametrize("rows", [True, False])
def test_a_plan_of_very_many_shards_is_checked(rows):
    """10,000 of rows, or of columns, each cut in two."""
    count, strips = 10_000, 5_000
    table = EmbeddingTable("t", count, 4 * strips)
    task = ShardingTask((table,), Topology(num_devices=2, memory_bytes=2**50), batch_size=4)
    shards = [Shard("t", (i, i + 1), (0, 4 * strips), i % 2) for i in range(count)]
    if not rows:
        cuts = [100 + i % 7 for i in range(strips)]
        parts = [(i, part) for i, cut_at in enumerate(cuts) for part in ((0, cut_at), (cut_at, count))]
        shards = [Shard("t", part, (4 * i, 4 * i + 4), i % 2) for i, part in parts]
    assert cover_problems(task, shards) == []
    assert len(cover_problems(task, shards[:-1])) == len(cover_problems(task, [*shards, shards[7]])) == 1


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
        ((0, 1), None, r"are held by devices 0, 1: expected one device, all devices, or the same place in every group"),
        ((0, 4, 7), None, "held by devices 0, 4, 7: expected"),
        ((8,), None, "on device 8, the task has devices 0 to 7"),
        ((2,), 4, "held by device 2: expected one device in each of 2 groups of 4"),
        ((2, 3), 4, "held by devices 2, 3: expected one device in each of 2 groups of 4"),
        ((0, 4), 2, "held by devices 0, 4: expected one device in each of 4 groups of 2"),
        (range(8), 1, "group_size 1 is data parallel: leave it out, and put every table on all devices"),
        ((0,), 3, "group_size 3 does not divide the 8 devices of the task"),
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
