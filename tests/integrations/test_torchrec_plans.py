"""Plans for TorchRec, plans of TorchRec, and files of them."""

import contextlib
import dataclasses
import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from torchrec.distributed.model_parallel import DMPCollection
from torchrec.distributed.types import CacheParams, EnumerableShardingSpec, ParameterSharding, ShardMetadata
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import InfeasiblePlanError, InputError, Shard, ShardingPlan, Topology
from shardgym.torchrec import export_plan, from_torchrec, import_plan, load, save, task_from_model, to_torchrec
from shardgym.torchrec.model_tables import join_name

pytestmark = MARKS


@pytest.fixture
def task():
    return task_from_model(Toy(), topology(4), 64)


@pytest.fixture
def two_hosts():
    """Four devices, two of each host and fast domain."""
    return task_from_model(Toy(), dataclasses.replace(topology(4), fast_domain_size=2), 64)


def columns(name, rows, *pieces):
    return [Shard(name, (0, rows), (first, end), device) for first, end, device in pieces]


def by_rows(name, width, *pieces):
    return [Shard(name, (first, end), (0, width), device) for first, end, device in pieces]


#: Whole, cut into uneven columns with two pieces on one rank, and cut by rows.
def mixed(task):
    return ShardingPlan.of(task, [
        *columns("users.id", 100, (0, 4, 3), (4, 12, 1), (12, 16, 3)),
        *by_rows("users.country", 8, (0, 5, 0), (5, 10, 1), (10, 15, 2), (15, 20, 3)),
        Shard.whole(task.table("towers.items.id"), 2),
    ])  # fmt: skip


def test_types_ranks_and_shards_are_what_the_plan_says(task, two_hosts):
    task = dataclasses.replace(task, topology=dataclasses.replace(task.topology, host_size=2))
    plan = to_torchrec(mixed(task), task, Toy()).plan
    assert list(plan) == ["users", "towers.items"]
    user = plan["users"]["id"]
    assert (user.sharding_type, user.compute_kernel, user.ranks) == ("column_wise", "fused", [3, 1, 3])
    assert [(s.shard_offsets, s.shard_sizes, str(s.placement)) for s in user.sharding_spec.shards] == [
        ([0, 0], [100, 4], "rank:3/cuda:1"),
        ([0, 4], [100, 8], "rank:1/cuda:1"),
        ([0, 12], [100, 4], "rank:3/cuda:1"),
    ]
    assert (plan["users"]["country"].sharding_type, plan["users"]["country"].ranks) == ("row_wise", [0, 1, 2, 3])
    item = plan["towers.items"]["id"]
    assert (item.sharding_type, item.ranks) == ("table_wise", [2])
    assert str(item.sharding_spec.shards[0].placement) == "rank:2/cuda:0"
    of_cpus = to_torchrec(mixed(task), task, device_type="cpu")
    assert str(of_cpus.plan["towers.items"]["id"].sharding_spec.shards[0].placement) == "rank:2/cpu"
    assert from_torchrec(of_cpus, task) == mixed(task)
    by_default = to_torchrec(mixed(two_hosts), two_hosts).plan["towers.items"]["id"]  # hosts are fast domains
    assert str(by_default.sharding_spec.shards[0].placement) == "rank:2/cuda:0"


def others(plan):
    """Shards of a plan but those of table users.country, 20 x 8."""
    return [shard for shard in plan.shards if shard.table != "users.country"]


def grid(*pieces):
    return [Shard("users.country", (r0, r1), (c0, c1), device) for r0, r1, c0, c1, device in pieces]


def test_replicas_have_a_dense_kernel_and_no_shards(task, caplog):
    plan = ShardingPlan.of(task, [*others(mixed(task)), Shard.whole(task.table("users.country"), 0, 1, 2, 3)])
    country = to_torchrec(plan, task).plan["users"]["country"]
    assert country == ParameterSharding("data_parallel", "dense", [0, 1, 2, 3])
    [note] = caplog.messages
    assert note.startswith("table 'users.country' is data parallel: fused_params does not apply to its kernel, dense")


def test_columns_under_row_wise_adagrad_are_said_to_train_otherwise(task, caplog):
    to_torchrec(mixed(task), task)
    assert caplog.messages == []
    adagrad = dataclasses.replace(task, optimizer="rowwise_adagrad")
    to_torchrec(mixed(adagrad), adagrad)
    [note] = caplog.messages
    assert note.startswith("table 'users.id' is cut by columns, and the optimiser is row-wise Adagrad: each piece has")
    caplog.clear()
    # Tables may have optimisers of their own.
    others = tuple(dataclasses.replace(t, optimizer="exact_sgd") if t.name == "users.id" else t for t in task.tables)
    adagrad = dataclasses.replace(adagrad, tables=others)
    to_torchrec(mixed(adagrad), adagrad)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            by_rows("users.country", 8, (0, 9, 2), (9, 20, 3)),
            r"over devices 2, 3: .*; rows \[0, 9\) columns \[0, 8\) on device 2 are not such a piece",
        ),
        (
            by_rows("users.country", 8, (0, 4, 0), (4, 10, 1), (10, 15, 2), (15, 20, 3)),
            r"over devices 0, 1, 2, 3: .*; rows \[0, 4\) columns \[0, 8\) on device 0 are not such a piece",
        ),
        (
            by_rows("users.country", 8, (0, 10, 1), (10, 20, 2)),
            r"over devices 1, 2: .* n = 4 ranks, in their order, or on the n = 2 ranks of one host; rows \[0, 10\)",
        ),
        (
            grid((0, 10, 0, 4, 0), (10, 20, 0, 4, 1), (0, 20, 4, 8, 2)),
            r"over device 2: .*; rows \[0, 20\) columns \[4, 8\) on device 2 are not",
        ),
        (
            grid((0, 10, 0, 4, 0), (10, 20, 0, 8, 1), (0, 10, 4, 8, 2)),
            r"no grid, rows \[0, 10\) columns \[0, 4\) on device 0 and rows \[10, 20\) columns \[0, 8\) on device 1",
        ),
        (
            grid((0, 10, 0, 4, 0), (10, 20, 0, 4, 1), *((r, r + 5, 4, 8, r // 5) for r in (0, 5, 10, 15))),
            r"by rows over 2 ranks, and over 4 with rows \[0, 5\) columns \[4, 8\) on device 0",
        ),
        (
            [Shard("users.country", (0, 20), (0, 8), (0, 2))],
            r"rows \[0, 20\) columns \[0, 8\) on devices 0, 2 of table 'users.country': TorchRec puts tables on all de",
        ),
    ],
    ids=["uneven in a host", "uneven", "not a host", "a block whole", "no grid", "blocks over more", "tiers"],
)
def test_cuts_that_torchrec_does_not_have_are_refused(two_hosts, shards, message):
    with pytest.raises(InputError, match=message):
        to_torchrec(ShardingPlan.of(two_hosts, [*others(mixed(two_hosts)), *shards]), two_hosts)


def sharded_by_rows(*ends):
    """A plan of TorchRec's for table "t" of 8 columns, with rows up to each end on successive ranks."""
    shards = [
        ShardMetadata(shard_offsets=[first, 0], shard_sizes=[end - first, 8], placement=f"rank:{rank}/cuda:{rank}")
        for rank, (first, end) in enumerate(itertools.pairwise([0, *ends]))
    ]
    ranks = list(range(len(ends)))
    return TorchRecPlan({"": {"t": ParameterSharding("row_wise", "fused", ranks, EnumerableShardingSpec(shards))}})


def test_uneven_rows_of_torchrec_are_kept_and_ranks_without_rows_refused():
    """Its planner cuts them so where devices have different memories. TorchRec fails on a rank without rows alone."""
    task = task_from_model(collection(config("t", 20, 8)), topology(4), 64)
    found = from_torchrec(sharded_by_rows(9, 12, 16, 20), task)
    assert found == ShardingPlan.of(task, by_rows("t", 8, (0, 9, 0), (9, 12, 1), (12, 16, 2), (16, 20, 3)))
    task = task_from_model(collection(config("t", 5, 8)), topology(4), 64)
    plan = from_torchrec(sharded_by_rows(2, 4, 5, 5), task)
    assert plan == ShardingPlan.of(task, by_rows("t", 8, (0, 2, 0), (2, 4, 1), (4, 5, 2)))
    with pytest.raises(
        InputError, match=r"of table 't' are left to device 3, none: 4 pieces of 2 rows are more than its 5 rows"
    ):
        to_torchrec(plan, task)


def test_rows_are_cut_over_as_many_ranks_in_all_tables():
    """TorchRec has one process group of each rank for the sums."""
    eight = dataclasses.replace(topology(8), fast_domain_size=4, host_size=2)
    task = task_from_model(Toy(), eight, 64)
    plan = ShardingPlan.of(task, [
        *by_rows("users.country", 8, (0, 10, 2), (10, 20, 3)),
        *by_rows("users.id", 16, (0, 25, 4), (25, 50, 5), (50, 75, 6), (75, 100, 7)),
        Shard.whole(task.table("towers.items.id"), 0),
    ])  # fmt: skip
    with pytest.raises(InputError, match=r"'users.id' is cut .* over 4 ranks, table 'users.country' .* over 2: Torch"):
        to_torchrec(plan, task)


def test_a_plan_for_groups_leaves_as_that_of_one_group(two_hosts, caplog, monkeypatch):
    shards = [
        *by_rows("users.country", 8, (0, 10, 0), (10, 20, 1)),
        *columns("users.id", 100, (0, 4, 1), (4, 16, 0)),
        Shard.whole(two_hosts.table("towers.items.id"), 1),
    ]
    of_groups = [dataclasses.replace(shard, devices=(shard.devices[0], shard.devices[0] + 2)) for shard in shards]
    two_hosts = dataclasses.replace(two_hosts, group_sync_interval=7)
    plan = ShardingPlan.of(two_hosts, of_groups, group_size=2)
    exported = to_torchrec(plan, two_hosts, Toy())
    assert {name: (t.sharding_type, t.ranks) for name, t in exported.plan["users"].items()} == {
        "country": ("row_wise", [0, 1]), "id": ("column_wise", [1, 0]),
    }  # fmt: skip
    assert caplog.messages == [
        "the plan is for one group: give it to DMPCollection with sharding_group_size=2 and "
        "use_inter_host_allreduce=True, and give the training pipeline dmp_collection_sync_interval_batches=7"
    ]
    assert from_torchrec(exported, two_hosts, group_size=2) == plan
    # What DMPCollection makes of it on a rank: the plan of that rank's group. Itself it needs GPUs.
    monkeypatch.setattr("torchrec.distributed.model_parallel.get_local_size", lambda: 2)
    remap = DMPCollection._remap_sharding_plan
    remap(SimpleNamespace(_device=SimpleNamespace(type="cpu")), exported, 3, 2, 2, use_inter_host_allreduce=True)
    held = {
        (join_name(path, name), tuple(metadata.shard_offsets), metadata.placement.rank())
        for path, module in exported.plan.items()
        for name, sharding in module.items()
        for metadata in sharding.sharding_spec.shards
    }
    assert held == {(s.table, (s.rows[0], s.columns[0]), d) for d in (2, 3) for s in plan.on(d)}
    with pytest.raises(InputError, match=r"is row_wise on 2 ranks, expected all 4; give group_size=2"):
        from_torchrec(exported, two_hosts)
    with pytest.raises(InputError, match="group_size 3 does not divide the 4 devices"):
        from_torchrec(exported, two_hosts, group_size=3)
    with pytest.raises(InputError, match="the plan is for at least 4 ranks, the group for 1: import"):
        from_torchrec(exported, two_hosts, group_size=1)


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (columns("users.id", 100, (0, 4, 3), (4, 12, 1), (12, 16, 3)), [(3, 0, 4), (1, 4, 12), (3, 12, 16)]),
        (columns("users.id", 100, (0, 4, 2), (4, 12, 2), (12, 16, 0)), [(2, 0, 12), (0, 12, 16)]),
        (columns("users.id", 100, (0, 8, 2), (8, 12, 1), (12, 16, 2)), [(2, 0, 4), (2, 4, 8), (1, 8, 12), (2, 12, 16)]),
        (by_rows("users.id", 16, (0, 3, 2), (3, 100, 2)), [(2, 0, 16)]),
    ],
    ids=["one width stays", "neighbours are joined", "others are cut", "rows on one rank are joined"],
)
def test_pieces_on_one_rank_get_one_width(task, shards, expected):
    """TorchRec fails on that rank alone otherwise."""
    others = [s for s in mixed(task).shards if s.table != "users.id"]
    exported = to_torchrec(ShardingPlan.of(task, [*others, *shards]), task).plan["users"]["id"]
    ends = [(s.shard_offsets[1], s.shard_offsets[1] + s.shard_sizes[1]) for s in exported.sharding_spec.shards]
    assert [(rank, *of) for rank, of in zip(exported.ranks, ends, strict=True)] == expected


def test_plans_that_cannot_run_do_not_leave(task):
    with pytest.raises(InfeasiblePlanError, match="missing"):
        to_torchrec(ShardingPlan.of(task, mixed(task).shards[1:]), task)
    with pytest.raises(InputError, match="plan is for task"):
        to_torchrec(mixed(task), dataclasses.replace(task, batch_size=65))
    with pytest.raises(InputError, match="device_type"):
        to_torchrec(mixed(task), task, device_type="gpu")


def test_a_plan_for_another_model_is_refused(task):
    smaller = Toy()
    smaller.towers.items = collection(config("id", 49, 24))
    with pytest.raises(InputError, match=r"'towers.items.id' is 49 x 24 there, and 50 x 24 in the task"):
        to_torchrec(mixed(task), task, smaller)
    with pytest.raises(InputError, match=r"this one has no table 'users.id'"):
        to_torchrec(mixed(task), task, collection(config("id", 50, 24)))
    larger = Toy()
    larger.more = collection(config("id", 50, 24))
    with pytest.raises(InputError, match=r"no shard of table 'more.id'"):
        to_torchrec(mixed(task), task, larger)


def test_mean_pooled_tables_cut_by_rows_are_refused(task):
    with pytest.raises(
        InputError,
        match=r"mean-pooled table 'users.country' of collection 'users' is row_wise: TorchRec divides outputs of "
        r"'users.id', which is column_wise, by its bag sizes, too",
    ):
        to_torchrec(mixed(task), task, Toy(pooling=PoolingType.MEAN))
    whole = ShardingPlan.table_wise(task, [0, 1, 2])
    to_torchrec(whole, task, Toy(pooling=PoolingType.MEAN))
    # A task knows its own without a model.
    tables = tuple(dataclasses.replace(t, pooling="mean") if t.name == "users.country" else t for t in task.tables)
    own = dataclasses.replace(task, tables=tables)
    with pytest.raises(InputError, match=r"mean-pooled table 'users.country' of collection"):
        to_torchrec(mixed(own), own)


def test_what_plans_cannot_say_is_refused(task):
    exported = to_torchrec(mixed(task), task)
    with pytest.raises(InputError, match=r"no table 'towers.items.id'"):
        from_torchrec(TorchRecPlan({"users": exported.plan["users"]}), task)
    users = exported.plan["users"]
    users["name"] = users["id"]  # of a module that the task has other tables of
    with pytest.raises(InputError, match=r"unknown table of the TorchRec plan 'users.name'"):
        from_torchrec(exported, task)
    del users["name"]
    users["country"] = dataclasses.replace(users["country"], compute_kernel="ssd_virtual_table")
    with pytest.raises(InputError, match="kernel ssd_virtual_table, which plans do not support"):
        from_torchrec(exported, task)
    users["country"] = ParameterSharding("data_parallel", "dense", [0, 1])
    with pytest.raises(InputError, match=r"data_parallel on 2 ranks, \[0, 1\]: expected all 4"):
        from_torchrec(exported, task)
    users["country"] = ParameterSharding("row_wise", "fused", [0, 1])
    with pytest.raises(InputError, match=r"'users.country' is row_wise and has no shards"):
        from_torchrec(exported, task)
    exported = to_torchrec(mixed(task), task)
    exported.plan["users"]["id"].sharding_spec.shards.pop()
    with pytest.raises(InfeasiblePlanError, match=r"columns \[12, 16\) of table 'users.id' are missing"):
        from_torchrec(exported, task)


def test_modules_that_the_task_has_none_of_are_left_out(task, caplog):
    exported = export_plan(mixed(task), task)
    assert exported.notes == ()
    both = TorchRecPlan({**exported.sharding_plan.plan, "other": exported.sharding_plan.plan["users"]})
    assert import_plan(both, task) == (mixed(task), ("'other' (tables id, country)",))
    assert from_torchrec(both, task) == mixed(task)
    assert caplog.messages == ["'other' (tables id, country) is left out: the task has none of its tables"]
    with pytest.raises(InputError, match=r"strict: 'other' \(tables id, country\) is left out"):
        import_plan(both, task, strict=True)
    assert import_plan(exported.sharding_plan, task, strict=True).left_out == ()


def test_damaged_files_and_those_for_another_model_or_job_are_refused(task, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    save(to_torchrec(mixed(task), task), path)
    assert load(path, Toy()).plan == load(path).plan
    wider, larger = Toy(), Toy()
    wider.towers.items = collection(config("id", 50, 28))
    with pytest.raises(InputError, match=r"table 'towers.items.id' is 50 x 24 in the plan, 50 x 28 in the model"):
        load(path, wider)
    larger.more = collection(config("id", 50, 24))
    with pytest.raises(InputError, match=r"table 'more.id' is only in the model"):
        load(path, larger)
    with pytest.raises(InputError, match=r"table 'users.id' is only in the plan"):
        load(path, Toy().towers)
    path.write_text(path.read_text().replace("rank:3/cuda:3", "cuda:3"))
    with pytest.raises(InputError, match=r"users.id.shards.0.placement: String should match pattern"):
        load(path)
    path.write_text(mixed(task).to_json())
    with pytest.raises(InputError, match=r"schema: Input should be 'shardgym.torchrec_plan/1'"):
        load(path)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    for size, group, whose in ((2, None, "4"), (8, None, "4"), (6, 4, "groups of 4"), (8, 4, ""), (4, None, "")):
        monkeypatch.setattr("torch.distributed.get_world_size", lambda size=size: size)
        save(to_torchrec(mixed(task), task), path, group)
        wrong = pytest.raises(InputError, match=f"is for {whose} ranks, this job has {size}: plan for as many")
        with wrong if whose else contextlib.nullcontext():
            load(path, Toy())


@pytest.fixture
def on_gpus():
    gpus = Topology(4, memory_bytes=2**20, device="a100", fast_domain_size=2, host_memory_bytes=2**20)
    return task_from_model(Toy(), gpus, 64)


def in_host_memory(task):
    """One table in halves with a cache for each, one in the memory of a host, one on a device."""
    users, country, items = task.tables
    halves = [
        Shard(users.name, (0, 100), (8 * i, 8 * i + 8), i, "fused_uvm_caching", cache_load_factor=0.3) for i in range(2)
    ]
    host = dataclasses.replace(Shard.whole(country, 2), compute_kernel="fused_uvm")
    return ShardingPlan.of(task, [*halves, host, Shard.whole(items, 3)])


def test_kernels_and_caches_leave_and_come_back(on_gpus, tmp_path):
    plan = in_host_memory(on_gpus)
    theirs = to_torchrec(plan, on_gpus, Toy())
    users = theirs.plan["users"]
    assert (users["id"].compute_kernel, users["id"].cache_params) == ("fused_uvm_caching", CacheParams(load_factor=0.3))
    assert (users["country"].compute_kernel, users["country"].cache_params) == ("fused_uvm", None)
    assert from_torchrec(theirs, on_gpus) == plan
    save(theirs, tmp_path / "plan.json")
    assert from_torchrec(load(tmp_path / "plan.json", Toy()), on_gpus) == plan
    users["id"] = dataclasses.replace(users["id"], cache_params=None)
    assert {shard.cache_load_factor for shard in from_torchrec(theirs, on_gpus).of_table("users.id")} == {0.2}


def test_one_table_has_one_kernel_in_torchrec(on_gpus):
    users, *others = on_gpus.tables
    hot = Shard(users.name, (0, 10), (0, 16), 0)
    cold = Shard(users.name, (10, 100), (0, 16), 0, "fused_uvm")
    plan = ShardingPlan.of(on_gpus, [hot, cold, *(Shard.whole(table, 1) for table in others)])
    with pytest.raises(InputError, match=r"'users.id' has kernel fused with rows \[0, 10\).*, and fused_uvm with rows"):
        to_torchrec(plan, on_gpus)
    with pytest.raises(InputError, match="which FBGEMM has only for GPUs: export for device_type='cuda'"):
        to_torchrec(in_host_memory(on_gpus), on_gpus, device_type="cpu")
