"""Memory that has to hold all of a training step: what shards take, what is left for them, and who refuses what."""

import dataclasses

import numpy as np
import pytest
import torch

import shardgym
from shardgym import EmbeddingTable, RecordedIds, Shard, ShardingPlan, ShardingTask, StepMemory, Topology, UniformIds
from shardgym.errors import NO_PLAN, InfeasiblePlanError, InputError, NoFeasiblePlanError
from shardgym.plans.feasibility import check_possible, plan_problems
from shardgym.tables.bags import Bags
from shardgym.tables.ids import draw_bags
from shardgym.tables.streams.statistics import Checksum
from shardgym.tables.streams.stream import DATA_VARIABLE
from shardgym.tasks.step_memory import shard_lookups

PLAIN = StepMemory(
    input_copies=1, id_copies=1, output_copies=2, partial_sum_copies=3, joined_output_copies=1, gradient_copies=1,
    quantizer_copies=0,
)  # fmt: skip


def make_task(step: StepMemory | None = PLAIN, memory: int | tuple[int, ...] = 10**6, **options) -> ShardingTask:
    tables = (
        EmbeddingTable("a", 100, 8, pooling_factor=3.0),
        EmbeddingTable("b", 50, 4, pooling_factor=2.0, weighted=True, num_features=2),
    )
    options = {"batch_size": 10, **options}
    return ShardingTask(tables, Topology(num_devices=2, memory_bytes=memory), step_memory=step, **options)


def test_a_task_says_it_only_where_it_is_given():
    task = make_task(None)
    assert task.capacity_bytes == task.topology.memory_bytes
    assert "step_memory" not in task.identity()
    assert ShardingTask.from_json(make_task().to_json()) == make_task() != task


def test_bytes_of_shards_are_counted_by_hand():
    task = make_task(optimizer="rowwise_adagrad")
    a, b = task.tables
    # ids: 10 samples x 3 ids and a length; outputs and gradients: 2 x 10 samples x 8 columns, in FP32
    whole = task.shard_bytes(a, (0, 100), 8)
    assert whole == (100 * 8 * 4, 100 * 4, 10 * 3 * 8 + 10 * 8, 2 * 10 * 8 * 4, 0)
    # two bags per sample, ids with weights
    assert task.shard_bytes(b, (0, 50), 4)[2:] == (10 * 2 * 12 + 2 * 10 * 8, 2 * 10 * 2 * 4 * 4, 0)
    # a replica receives no ids, its outputs stay where they are, and its gradient is dense
    assert task.shard_bytes(a, (0, 100), 8, 2)[2:] == (0, 100 * 8 * 4, 0)
    # partial sums of a quarter of the rows, a quarter of the ids on average
    quarter = task.shard_bytes(a, (25, 50), 8, hottest=False)
    assert quarter[2:] == (10 * 3 * 8 // 4 + 10 * 8, 3 * 10 * 8 * 4, 0)
    assert task.shard_bytes(a, (25, 50), 8).ids > quarter.ids
    assert Shard("a", (25, 50), (0, 8), 1).bytes(task) == sum(task.shard_bytes(a, (25, 50), 8))
    # holders of groups serve the samples of their group
    four = dataclasses.replace(task, topology=Topology(num_devices=4, memory_bytes=10**6), batch_size=8)
    assert four.shard_bytes(a, (0, 100), 8, 2)[2:] == (4 * 3 * 8 + 4 * 8, 2 * 4 * 8 * 4, 0)


def test_operators_put_out_fp16_or_a_quantiser_makes_it():
    task = make_task(precision="fp16")
    a = task.tables[0]
    assert task.shard_bytes(a, (0, 100), 8).outputs == 2 * 10 * 8 * 2
    converted = dataclasses.replace(task, step_memory=dataclasses.replace(PLAIN, quantizer_copies=1))
    assert converted.shard_bytes(a, (0, 100), 8)[3:] == (2 * 10 * 8 * 4, 10 * 8 * 2)
    assert dataclasses.replace(converted, precision="fp32").shard_bytes(a, (0, 100), 8).outputs == 2 * 10 * 8 * 4


def test_what_every_plan_takes_is_off_the_memory_of_each_device():
    task = make_task(dataclasses.replace(PLAIN, reserved_bytes=(1000, 2000)), batch_size=9)
    columns = 8 + 2 * 4

    def own(samples: int) -> int:
        return samples * (3 * 8 + 8 + 2 * 12 + 2 * 8) + samples * columns * 4

    assert task.capacity_bytes == (10**6 - 1000 - own(5), 10**6 - 2000 - own(4))
    plan = ShardingPlan.table_wise(task, [0, 1])
    for device, held in enumerate(plan.memory_per_device(task)):
        used = plan.bytes_per_device(task)[device]
        assert held.total - used == task.topology.memory_bytes[device] - task.capacity_bytes[device]
        assert held.reserved == (1000, 2000)[device]


def test_columns_add_up_as_blocks_do():
    task = make_task(StepMemory(), batch_size=77, optimizer="rowwise_adagrad", precision="fp16")
    for position, table in enumerate(task.tables):
        for columns in range(4, table.embedding_dim + 1, 4):
            (size,) = task.columns_bytes(np.array([position]), np.array([columns]))
            assert size == task.block_bytes(table, table.num_embeddings, columns)


@pytest.mark.parametrize("lengths", ["fixed", "poisson"])
def test_the_hottest_batch_is_as_rare_as_it_says(lengths):
    table = EmbeddingTable("t", 1000, 4, pooling_factor=2.0, ids=UniformIds(lengths=lengths))
    expected = shard_lookups(table, 50, 0, 300, 0.99)
    assert expected.average == 30
    counts = []
    for batch in range(2000):
        bags = draw_bags(table, 50, seed=0, batch=batch)
        counts.append(int((bags.indices < 300).sum()))
    hotter = np.mean(np.array(counts) > expected.hottest)
    assert 0.002 < hotter < 0.03
    whole = shard_lookups(table, 50, 0, 1000, 0.99)
    assert whole.hottest == 100 if lengths == "fixed" else whole.hottest > 100


def test_recorded_ids_have_their_own_hottest_batch(tmp_path, monkeypatch):
    lengths = torch.tensor([[1, 1, 3, 1, 1, 1]])
    indices = torch.tensor([0, 9, 1, 2, 3, 8, 9, 0])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    torch.save((indices, offsets, lengths), tmp_path / "ids.pt")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    checksum = Checksum()
    checksum.add(Bags(indices.numpy(), lengths[0].numpy()))
    ids = RecordedIds("ids.pt", "t000", 6, 6, checksum.hexdigest())
    table = EmbeddingTable("t", 10, 4, pooling_factor=8 / 6, ids=ids)
    # batches of two samples: [0, 9], [1, 2, 3, 8], [9, 0]
    assert shard_lookups(table, 2, 0, 10, 0.9) == (8 / 3, 4)
    assert shard_lookups(table, 2, 0, 5, 0.9) == (5 / 3, 3)
    assert shard_lookups(table, 2, 9, 10, 0.9) == (2 / 3, 1)
    assert shard_lookups(table, 4, 0, 10, 0.9) == (6, 6)
    monkeypatch.delenv(DATA_VARIABLE)
    other = dataclasses.replace(table, ids=dataclasses.replace(table.ids, feature="t001"))
    with pytest.raises(InputError, match=r"recorded ids need 'ids\.pt'"):
        shard_lookups(other, 2, 0, 10, 0.9)


def test_a_plan_that_fits_on_average_alone_is_refused_with_the_figures_of_the_batch():
    table = EmbeddingTable("t", 100, 4, pooling_factor=20.0, ids=UniformIds(lengths="poisson"))
    others = EmbeddingTable("u", 100, 4)
    task = ShardingTask((table, others), Topology(2, memory_bytes=10**6), batch_size=100, step_memory=PLAIN)
    plan = ShardingPlan.table_wise(task, [0, 1])
    average, hottest = (plan.memory_per_device(task, hottest=which)[0].total for which in (False, True))
    assert average < hottest
    tight = dataclasses.replace(task, topology=Topology(2, memory_bytes=(hottest - 1, 10**6)))
    with pytest.raises(InfeasiblePlanError) as raised:
        ShardingPlan.table_wise(tight, [0, 1]).validate(tight)
    text = str(raised.value)
    assert "device 0 holds" in text
    assert ", 1 more than its" in text
    assert "it fits on average but not in the hottest batch (2000 ids and" in text
    assert f"{hottest} bytes in the hottest batch" in text
    assert "largest of its shards: 't'" in text
    (worse,) = plan_problems(
        dataclasses.replace(task, topology=Topology(2, memory_bytes=(average - 1, 10**6))), plan.shards
    )
    assert "it fits in no batch" in worse
    fitting = dataclasses.replace(task, topology=Topology(2, memory_bytes=(hottest, 10**6)))
    ShardingPlan.table_wise(fitting, [0, 1]).validate(fitting)


def test_a_task_that_nothing_fits_says_what_is_missing_and_what_would_help():
    task = make_task(memory=3000)
    missing = sum(task.table_bytes(table) for table in task.tables) - sum(task.capacity_bytes)
    with pytest.raises(NoFeasiblePlanError) as raised:
        shardgym.make_solver("lpt").solve(task, shardgym.make_cost("roofline"))
    for part in (
        f"one of 2 devices lacks at least {-(-missing // 2)} bytes",
        f"the largest table is 'a' with {task.table_bytes(task.tables[0])} bytes",
        "; use ", "more devices, more memory per device, or fewer rows",
    ):  # fmt: skip
        assert part in str(raised.value)


def test_tables_that_fit_as_replicas_alone_are_not_refused_beforehand():
    """Ten rows are small, what they pool for all samples is not."""
    table = EmbeddingTable("t", 10, 64)
    step = dataclasses.replace(PLAIN, joined_output_copies=0)
    task = ShardingTask((table,), Topology(4, memory_bytes=50_000), batch_size=400, step_memory=step)
    assert task.table_bytes(table) > sum(task.capacity_bytes)
    ShardingPlan.of(task, [Shard.whole(table, 0, 1, 2, 3)]).validate(task)
    check_possible(task)


BY_SIMULATOR = ("neuroshard", "autoshard", "dreamshard", "ppo_columns")
BY_ROOFLINE = (
    "random", "size_greedy", "lpt", "lpt_whole", "karmarkar_karp", "row_wise", "hierarchical", "column_greedy",
    "random_search", "annealing", "local_search", "exhaustive", "neuroshard_plus", "lookahead_any",
)  # fmt: skip


@pytest.mark.parametrize("name", BY_SIMULATOR + BY_ROOFLINE)
@pytest.mark.parametrize("domain", [4, 2])
def test_no_plan_of_a_solver_exceeds_memory(name, domain):
    """Memory is such that half of the solvers' plans by weights and states alone would not fit in a step."""
    rng = np.random.default_rng(5)
    tables = tuple(
        EmbeddingTable(f"t{n}", int(rng.integers(50, 2000)), int(4 * rng.integers(1, 9)), float(rng.integers(1, 30)))
        for n in range(6)
    )
    step = StepMemory(reserved_bytes=(0, 5000, 0, 0))
    roomy = ShardingTask(
        tables, Topology(4, memory_bytes=2**40, fast_domain_size=domain), batch_size=128, step_memory=step
    )
    cost = shardgym.make_cost("simulator" if name in BY_SIMULATOR else "roofline")
    own = max(roomy.topology.memory_bytes[d] - roomy.capacity_bytes[d] for d in range(4))
    for fullness in (0.95, 0.8, 0.6):
        memory = int(own + roomy.total_bytes / 4 / fullness)
        task = dataclasses.replace(roomy, topology=Topology(4, memory_bytes=memory, fast_domain_size=domain))
        try:
            plan = shardgym.make_solver(name).solve(task, cost)
        except NO_PLAN:
            continue
        plan.validate(task)
        assert all(held.total <= memory for held in plan.memory_per_device(task))
        break
    else:
        pytest.fail("no plan was found where memory is filled to 60 %")


def test_reserves_are_one_for_all_or_one_for_each():
    assert StepMemory(reserved_bytes=7).reserved_bytes == (7,)
    with pytest.raises(InputError, match="reserved_bytes has 3 entries for 2 devices"):
        make_task(StepMemory(reserved_bytes=(1, 2, 3)))
    with pytest.raises(InputError, match="expected a number of bytes, or one for each device"):
        StepMemory(reserved_bytes=())
    with pytest.raises(InputError, match="hot_quantile: Input should be less than 1, got 1"):
        StepMemory(hot_quantile=1.0)
