"""Constraints and pins that the planner follows, or names."""

import dataclasses
import re

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import BoundsCheckMode, CacheParams, KeyValueParams
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec_toys import MARKS, Reversed, Toy, collection, config, planner, topology

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.torchrec import PlannerSettings, ShardGymPlanner
from shardgym.torchrec.following import Rule, follow

pytestmark = MARKS


WHOLE = frozenset(["table_wise"])


class Halves:
    """Table "users.id" in two halves of 8 columns, the others whole on the first device."""

    def solve(self, task, cost, seed=0):
        users, *others = task.tables
        halves = [Shard(users.name, (0, 100), (8 * i, 8 * i + 8), i) for i in range(2)]
        return ShardingPlan.of(task, [*halves, *(Shard.whole(table, 0) for table in others)])


KERNEL = "the plan has kernel fused, which keeps rows in the memory of the device"
PRECISION = "a task communicates all tables in one precision, FP32, or two bytes where all tables ask for FP16 or BF16"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sharding_types", ["column_wise"], ""),
        ("sharding_types", ["table_wise"], ""),
        ("sharding_types", ["row_wise", "column_wise"], ""),
        ("compute_kernels", ["fused", "dense"], ""),
        ("compute_kernels", ["key_value"], KERNEL),
        ("compute_kernels", ["fused_uvm", "dense"], KERNEL),
        ("min_partition", 8, ""),
        ("min_partition", 12, ""),
        ("min_partition", 32, "it has 16 columns and stays uncut"),
        ("pooling_factors", [3.0], ""),
        ("num_poolings", [2.0], ""),
        ("num_poolings", [1.5], "they make 1.5 bags per sample, but tasks need a whole number, here 2"),
        ("batch_sizes", [16], ""),
        ("batch_sizes", [20], "they make 1.25 bags per sample, but tasks need a whole number, here 1"),
        ("is_weighted", True, ""),
        ("cache_params", CacheParams(load_factor=0.5), "the plan has kernel fused, which has no cache"),
        ("enforce_hbm", True, ""),
        ("stochastic_rounding", False, ""),
        ("bounds_check_mode", BoundsCheckMode.NONE, ""),
        ("feature_names", ["id_ids"], ""),
        ("feature_names", ["ids"], "the model's table has features id_ids"),
        ("output_dtype", DataType.FP32, ""),
        ("output_dtype", DataType.FP16, PRECISION),
        ("device_group", "cpu", ""),
        ("device_group", "cuda", "the topology's devices are of type cpu"),
        ("key_value_params", KeyValueParams(), "tables are kept in the memory of devices and hosts"),
        ("use_virtual_table", True, "tables are kept in the memory of devices and hosts"),
    ],
)
def test_each_field_of_constraints_is_followed_or_named(field, value, message, caplog):
    constraints = {"users.id": ParameterConstraints(**{field: value})}
    planner(Halves(), constraints=constraints).plan(Toy())
    assert caplog.messages == [f"{field} of 'users.id' is not followed: {message}"] * bool(message)
    strict = ShardGymPlanner(topology(), 16, constraints, PlannerSettings(Halves(), strict=True))
    if message:
        with pytest.raises(InputError, match=f"strict: {field} of 'users.id' is not followed: "):
            strict.plan(Toy())
        assert strict.last is None
    else:
        assert strict.plan(Toy())


def test_a_field_of_a_later_torchrec_is_named(caplog):
    (marker,) = (m for m in test_each_field_of_constraints_is_followed_or_named.pytestmark if m.name == "parametrize")
    assert {field for field, *_ in marker.args[1]} == {field.name for field in dataclasses.fields(ParameterConstraints)}
    later = dataclasses.make_dataclass("Later", [("color", str, "red")], bases=(ParameterConstraints,))
    planner("lpt", constraints={"users.id": later()}).plan(Toy())
    assert caplog.messages == ["color of 'users.id' is not followed: ShardGym does not know this field"]


def test_what_no_cost_depends_on_is_passed_on():
    asked = ParameterConstraints(
        enforce_hbm=True, stochastic_rounding=False, bounds_check_mode=BoundsCheckMode.NONE, output_dtype=DataType.FP16
    )
    ours = planner("lpt", constraints=dict.fromkeys(["users.id", "country", "towers.items.id"], asked))
    sharding = ours.plan(Toy()).plan["users"]["id"]
    assert (sharding.enforce_hbm, sharding.stochastic_rounding) == (True, False)
    assert (sharding.bounds_check_mode, sharding.output_dtype) == (BoundsCheckMode.NONE, DataType.FP16)
    assert ours.last.task.precision == "fp16"


def test_a_piece_is_as_wide_as_asked_for():
    """Of 16 columns, halves have 8."""
    types = ["column_wise", "row_wise"]
    for least, expected in ((8, 8), (12, 16)):
        asked = {"users.id": ParameterConstraints(sharding_types=types, min_partition=least)}
        plan = planner(Halves(), constraints=asked).plan(Toy())
        assert min(s.shard_sizes[1] for s in plan.plan["users"]["id"].sharding_spec.shards) >= expected


def test_mean_pooled_tables_are_not_cut_by_rows_beside_others(caplog):
    """The solver would cut both tables by rows; TorchRec would divide the whole one by wrong bag sizes, too."""
    model = collection(config("mean", 4000, 8, pooling=PoolingType.MEAN), config("one", 1, 8))
    factors = {"mean": ParameterConstraints(pooling_factors=[200.0])}
    ours = ShardGymPlanner(Topology(2, memory_bytes=2**20), 512, factors, PlannerSettings("row_wise"))
    assert ours.plan(model).plan[""]["mean"].sharding_type != "row_wise"
    assert caplog.messages == []
    asked = ParameterConstraints(sharding_types=["row_wise"])
    planner("lpt", constraints={"mean": asked}).plan(model)
    (remark,) = caplog.messages
    assert remark == (
        "sharding_types of 'mean' is not followed: TorchRec divides mean-pooled tables that are cut by rows by the "
        "wrong bag sizes, unless all of their collection are row_wise or table_row_wise, which 'one' cannot be"
    )


@pytest.mark.parametrize(
    ("solver", "asked"),
    [
        ("lpt", ParameterConstraints(sharding_types=["row_wise"])),
        ("row_wise", ParameterConstraints(pooling_factors=[200.0])),  # where nothing else is as fast
    ],
)
def test_a_collection_with_mean_pooling_is_cut_by_rows_as_a_whole(solver, asked):
    mean = config("mean", 4000, 8, pooling=PoolingType.MEAN)
    model = collection(mean, config("mean2", 400, 8, pooling=PoolingType.MEAN), config("sum", 10, 8))
    ours = ShardGymPlanner(Topology(4, memory_bytes=2**20), 512, {"mean": asked}, PlannerSettings(solver, strict=True))
    assert {sharding.sharding_type for sharding in ours.plan(model).plan[""].values()} == {"row_wise"}


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise", "grid_shard"])
def test_tables_with_fewer_rows_than_ranks_are_not_cut_by_rows(kind, caplog):
    """Nine rows are five pieces of two on eight ranks, and three of three on four."""
    model = collection(config("tiny", 3, 16), config("few", 9, 16), config("many", 4000, 16))
    hosts = Topology(8, memory_bytes=2**20, fast_domain_size=4)
    asked = dict.fromkeys(["tiny", "few", "many"], ParameterConstraints(sharding_types=[kind]))
    found = ShardGymPlanner(hosts, 16, asked, PlannerSettings("lpt")).plan(model).plan[""]
    assert [sharding.sharding_type == kind for sharding in found.values()] == [False, False, True]
    assert caplog.messages == [
        "sharding_types of 'tiny' and 1 more are not followed: it has too few rows for all ranks, and "
        "TorchRec fails on a rank without rows"
    ]
    with pytest.raises(InputError, match="strict: sharding_types of 'tiny' and 1 more are not followed: it has too"):
        ShardGymPlanner(hosts, 16, asked, PlannerSettings("lpt", strict=True)).plan(model)
    # With another type beside it there is nothing to name, and a solver that cuts all by rows is mended.
    asked["tiny"] = asked["few"] = ParameterConstraints(sharding_types=[kind, "column_wise"])
    assert ShardGymPlanner(hosts, 16, asked, PlannerSettings(RowsAnyhow(), strict=True)).plan(model)


class RowsAnyhow:
    """All tables by rows, each row of a device where there are no more."""

    def solve(self, task, cost, seed=0):
        shards = []
        for table in task.tables:
            block = -(-table.num_embeddings // task.num_devices)
            for n, first in enumerate(range(0, table.num_embeddings, block)):
                rows = (first, min(first + block, table.num_embeddings))
                shards.append(Shard(table.name, rows, (0, table.embedding_dim), n))
        return ShardingPlan.of(task, shards)


def test_tables_are_pinned_to_ranks():
    def plan(strict=True, **pins):
        given = {name.replace("_", "."): ranks for name, ranks in pins.items()}
        ours = ShardGymPlanner(topology(3), 16, None, PlannerSettings("lpt", pins=given, strict=strict))
        ours.plan(Toy())
        return ours

    for rank in range(3):
        ours = plan(users_id=rank, country=[0, 1])
        (shard,) = ours.last.plan.of_table("users.id")
        assert shard.devices == (rank,)
        assert {d for s in ours.last.plan.of_table("users.country") for d in s.devices} <= {0, 1}
    with pytest.raises(InputError, match=r"pins: table 'users.id': expected ranks from 0 to 2, got 3"):
        plan(users_id=3)
    with pytest.raises(InputError, match="unknown table in pins 'nobody'"):
        plan(nobody=0)


def test_a_pin_that_nothing_fits_is_named(caplog):
    full = Topology(2, memory_bytes=(100 * 16 * 4 + 10, 2**20))
    settings = PlannerSettings("lpt", pins={"users.id": 0, "towers.items.id": 0})
    ours = ShardGymPlanner(full, 16, None, settings)
    ours.plan(Toy())
    (remark,) = caplog.messages
    assert remark.startswith("pins of '")
    assert remark.endswith("' is not followed: no plan was found that keeps it there")
    with pytest.raises(InputError, match="strict: pins of '"):
        ShardGymPlanner(full, 16, None, dataclasses.replace(settings, strict=True)).plan(Toy())


HOSTS = Topology(4, memory_bytes=2**20, fast_domain_size=2)


@pytest.mark.parametrize(
    ("kind", "pin", "besides"),
    [
        ("table_row_wise", [2, 3], ""),
        ("table_column_wise", [1, 2, 3], ""),
        ("grid_shard", [0, 1], ""),
        ("column_wise", [1], ""),
        ("row_wise", range(4), ""),
        ("data_parallel", range(4), ""),
        ("row_wise", [0], "rank 0"),
        ("data_parallel", [0, 1], "ranks 0, 1"),
        ("table_row_wise", [1, 2], "ranks 1, 2"),
    ],
)
def test_a_pin_and_a_sharding_type_are_followed_together_and_the_pin_where_they_conflict(kind, pin, besides, caplog):
    asked = {"users.id": ParameterConstraints(sharding_types=[kind])}
    ours = ShardGymPlanner(HOSTS, 16, asked, PlannerSettings(Reversed(), pins={"users.id": pin}))
    sharding = ours.plan(Toy()).plan["users"]["id"]
    assert set(sharding.ranks) <= set(pin)
    why = f"{kind} needs ranks outside of its pin, {besides}; the pin takes precedence"
    remarks = [message for message in caplog.messages if "not followed" in message]
    assert remarks == [f"sharding_types of 'users.id' is not followed: {why}"] * bool(besides)
    if not besides:
        assert sharding.sharding_type == kind or (kind, len(sharding.ranks)) == ("column_wise", 1)


class ColumnsInAndAcrossHosts:
    """Tables of one collection, the first cut by columns in one host of two, the second across both."""

    def solve(self, task, cost, seed=0):
        users, countries, items = task.tables
        return ShardingPlan.of(task, [
            *(Shard(users.name, (0, 100), (8 * n, 8 * n + 8), n) for n in range(2)),
            *(Shard(countries.name, (0, 20), (4 * n, 4 * n + 4), 2 * n) for n in range(2)),
            Shard.whole(items, 0),
        ])  # fmt: skip


def test_columns_in_one_host_are_table_column_wise_whatever_they_are_called(caplog):
    def plan(**types):
        asked = {f"users.{name}": ParameterConstraints(sharding_types=[kind]) for name, kind in types.items()}
        settings = PlannerSettings(ColumnsInAndAcrossHosts(), strict=True)
        return ShardGymPlanner(HOSTS, 16, asked, settings).plan(Toy()).plan["users"]

    users = plan(id="table_column_wise", country="column_wise")
    assert {name: (of.sharding_type, of.ranks) for name, of in users.items()} == {
        "id": ("column_wise", [0, 1]), "country": ("column_wise", [0, 2]),
    }  # fmt: skip
    assert plan(id="column_wise")["id"].ranks == [0, 1]  # TorchRec's column_wise may put pieces anywhere
    # Two ranks are one host, in which there is no such thing.
    asked = {"users.id": ParameterConstraints(sharding_types=["table_column_wise"])}
    planner("lpt", constraints=asked).plan(Toy())
    (remark,) = caplog.messages
    assert remark.startswith(
        "sharding_types of 'users.id' is not followed: no plan was found in which it is table_column_wise; it is "
    )


def test_a_plan_that_follows_rules_is_no_worse_than_a_simple_one_and_better_than_mending():
    tables = tuple(EmbeddingTable(f"t{n}", 1000 * (n + 1), 64, 2.0 + n) for n in range(10))
    task = ShardingTask(tables, Topology(4, memory_bytes=2**30), 4096)
    cost = make_cost("roofline")
    # All on two of four devices.
    halves = [Shard(t.name, (0, t.num_embeddings), (32 * n, 32 * n + 32), n) for t in tables for n in range(2)]
    plan = follow(ShardingPlan.of(task, halves), task, cost, dict.fromkeys((t.name for t in tables), Rule(WHOLE)))
    assert {plan.kind_of(t.name, task) for t in tables} == {"table_wise"}
    simple = make_solver("lpt_whole").solve(task, cost)
    found, expected = (answer.total_ms for answer in cost.evaluate(task, [plan, simple]))
    assert found <= expected
    # One table has a rule, and the others make room for it.
    plan = follow(ShardingPlan.of(task, halves), task, cost, {"t9": Rule(WHOLE)})
    assert plan.kind_of("t9", task) == "table_wise"
    assert cost.evaluate(task, [plan])[0].total_ms <= expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sharding_types": ["rowwise"]}, "sharding type of table 'users.id' 'rowwise': did you mean row_wise"),
        ({"compute_kernels": ["fused_uwm"]}, "compute kernel of table 'users.id' 'fused_uwm': did you mean fused_uvm"),
    ],
)
def test_an_unknown_sharding_type_or_kernel_is_refused(asked, message):
    with pytest.raises(InputError, match=message):
        planner(constraints={"users.id": ParameterConstraints(**asked)}).plan(Toy())


GPUS = Topology(4, 2**20, "a100", "pcie", 2, intra_bandwidth=1e9, inter_bandwidth=1e9, host_memory_bytes=2**20)


@pytest.mark.parametrize("params", [None, CacheParams(load_factor=0.5, reserved_memory=1.0)])
def test_the_planner_obeys_kernels(params, caplog):
    asked = {
        "users.id": ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=params),
        "users.country": ParameterConstraints(compute_kernels=["fused_uvm"], sharding_types=["column_wise"]),
        "towers.items.id": ParameterConstraints(compute_kernels=["fused", "fused_uvm"], sharding_types=["table_wise"]),
    }
    planner = ShardGymPlanner(GPUS, 16, asked, PlannerSettings("lpt", strict=True))
    found = planner.plan(Toy()).plan
    assert found["users"]["id"].compute_kernel == "fused_uvm_caching"
    expected = CacheParams(load_factor=0.2) if params is None else params
    assert found["users"]["id"].cache_params == expected
    assert found["users"]["country"].compute_kernel == "fused_uvm"
    assert found["towers.items"]["id"].compute_kernel == "fused"
    assert planner.last.cost.feasible
    assert caplog.messages == []


def test_a_cost_without_the_memory_of_hosts_is_named(caplog):
    asked = {"users.id": ParameterConstraints(compute_kernels=["fused_uvm"])}
    ShardGymPlanner(GPUS, 16, asked, PlannerSettings("lpt", "torchrec_rating")).plan(Toy())
    why = "cost 'torchrec_rating' does not price host memory"
    assert caplog.messages == [f"compute_kernels of 'users.id' is not followed: {why}"]


class Placed:
    """Puts the first table on all devices, and the others on some."""

    def __init__(self, *others):
        self.others = others

    def solve(self, task, cost, seed=0):
        first, *others = task.tables
        return ShardingPlan.of(task, [Shard.whole(first, *range(4)), *(Shard.whole(t, *self.others) for t in others)])


@pytest.mark.parametrize(("solver", "sign"), [("lpt", 0), (Placed(0), 1), (Placed(0, 1, 2, 3), -1)])
def test_the_plan_of_lpt_in_the_log_is_under_the_same_constraints(solver, sign, caplog):
    caplog.set_level("INFO", "shardgym.torchrec")
    asked = {"users.id": ParameterConstraints(sharding_types=["data_parallel"])}
    ShardGymPlanner(GPUS, 16, asked, PlannerSettings(solver)).plan(Toy())
    ms = r"([\d.]+)"
    text = rf"the plan takes {ms} ms by 'gpu', that of 'lpt' under the same constraints {ms}\. "
    own, simple = map(float, re.match(text, caplog.messages[-1]).groups())
    assert (own > simple) - (own < simple) == sign
    # The default solver, for which this one stands, gives way to lpt.
    default = ShardGymPlanner(GPUS, 16, asked)
    default._solver = make_solver(solver) if isinstance(solver, str) else solver
    default.plan(Toy())
    assert default.last.cost.total_ms == pytest.approx(min(own, simple), abs=0.001)


def test_tables_that_devices_have_no_room_for_are_planned_where_they_are_asked_for(caplog):
    small = dataclasses.replace(GPUS, memory_bytes=(1000,) * 4)
    names = "users.id", "users.country", "towers.items.id"
    with pytest.raises(NoFeasiblePlanError):
        ShardGymPlanner(dataclasses.replace(small, host_memory_bytes=0), 16).plan(Toy())
    # Nobody said which tables: the solver, which could give parts of a table different kernels, gives each one.
    planner = ShardGymPlanner(small, 16, settings=PlannerSettings("neuroshard_plus", strict=True))
    assert not getattr(planner._solver, "row_cuts")  # noqa: B009 - of this solver alone
    found = planner.plan(Toy()).plan
    assert [record.levelname for record in caplog.records if "memory of hosts" in record.message] == ["WARNING"]
    assert "fused_uvm" in {of.compute_kernel[:9] for module in found.values() for of in module.values()}
    asked = dict.fromkeys(names, ParameterConstraints(compute_kernels=["fused_uvm"]))
    planner = ShardGymPlanner(small, 16, asked, PlannerSettings(strict=True))
    caplog.set_level("INFO", "shardgym.torchrec")
    planner.plan(Toy())
    said = f"rows in the memory of hosts (devices have 1000 bytes): {', '.join(sorted(names))}"
    assert ("INFO", said) in [(r.levelname, r.message) for r in caplog.records]
    assert {shard.compute_kernel for shard in planner.last.plan.shards} == {"fused_uvm"}
