"""AcrossTasks: the numbers of `evaluate`, bit by bit, whatever is predicted in the same call."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.simulator import across_tasks
from shardgym.costs.simulator.across_tasks import AcrossTasks
from shardgym.costs.simulator.columns import Columns
from shardgym.costs.simulator.contents import Contents
from shardgym.errors import InputError

BATCH = 512


def made_up_table(number, rng):
    histogram = np.zeros(17)
    histogram[:6] = rng.dirichlet(np.ones(6))
    return EmbeddingTable(
        f"t{number}", int(10 ** rng.uniform(2.5, 4.5)), int(rng.choice([4, 8, 16, 32, 64])),
        pooling_factor=float(np.round(rng.uniform(1, 20), 3)), reuse_histogram=tuple(histogram.tolist()),
    )  # fmt: skip


def made_up_task(tables, devices, seed, batch=BATCH):
    rng = np.random.default_rng(seed)
    tables = tuple(made_up_table(number, rng) for number in range(tables))
    return ShardingTask(tables, Topology(num_devices=devices, memory_bytes=2**40), batch_size=batch)


def random_plans(task, count, seed):
    """Plans of which some leave devices empty."""
    rng = np.random.default_rng(seed)
    most = rng.integers(1, task.num_devices + 1, count)
    return [ShardingPlan.table_wise(task, rng.integers(0, m, task.num_tables).tolist()) for m in most]


def across_costs(across, tasks, plans):
    """Predict all plans, of `tasks[n]` each, in one call."""
    first = {task.digest: across.add(task, plan.shards) for task, plan in zip(tasks, plans, strict=True)}
    shards = [first[task.digest] + np.arange(task.num_tables) for task in tasks]
    return across.costs(Contents(
        tasks[0].num_devices, np.array([task.num_tables for task in tasks]), np.concatenate(shards),
        np.array([shard.device for plan in plans for shard in plan.shards]),
        np.array([float(task.batch_size) for task in tasks]), np.full(len(tasks), 4.0),
    ))  # fmt: skip


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("shards_at_once", [1, 40, 2048])
def test_costs_are_those_of_evaluate_bit_by_bit(oracle, model, devices, shards_at_once, monkeypatch):
    monkeypatch.setattr(across_tasks, "_SHARDS", shards_at_once)
    kinds = [made_up_task(9, devices, 1), made_up_task(2, devices, 2), made_up_task(30, devices, 3, batch=2**16)]
    tasks = [kinds[n % 3] for n in range(24)]
    plans = [random_plans(task, 1, seed)[0] for seed, task in enumerate(tasks)]
    alone = make_cost("simulator", weights=model)
    expected = [alone.evaluate(task, [plan])[0] for task, plan in zip(tasks, plans, strict=True)]
    assert across_costs(AcrossTasks(oracle), tasks, plans) == expected
    # Large batches, and eight devices, leave the range of the training data.
    assert len({cost.notes for cost in expected}) > 1


def test_notes_on_links_are_those_of_evaluate(oracle):
    """Tasks with links of their own and without, in one call."""
    plain = made_up_task(9, 2, 1)
    links = [dataclasses.replace(plain.topology, interconnect=name) for name in ("wire", "string")]
    tasks = [plain, *(dataclasses.replace(plain, topology=topology) for topology in links), plain]
    plans = [random_plans(task, 1, 0)[0] for task in tasks]
    expected = [oracle.evaluate(task, [plan])[0] for task, plan in zip(tasks, plans, strict=True)]
    assert across_costs(AcrossTasks(oracle), tasks, plans) == expected
    noted = "predicted communication is that of made-up: the task's links ('{}') play no part"
    assert [cost.notes[-1] for cost in expected[1:3]] == [noted.format("wire"), noted.format("string")]
    assert expected[0].notes == expected[3].notes == expected[1].notes[:-1]


def test_costs_can_be_written_and_not_changed(oracle, task, plans):
    [cost, other] = across_costs(AcrossTasks(oracle), [task] * 2, plans[:2])
    assert type(cost).from_json(cost.to_json()) == cost
    assert cost.digest != other.digest
    with pytest.raises(ValueError, match="read-only"):
        cost.per_device[0, 0] = 1.0


def test_placements_that_are_not_complete_cost_what_a_placement_state_says(oracle, task):
    across, state, rng = AcrossTasks(oracle), oracle.begin(task), np.random.default_rng(4)
    numbers = across.add(task, state.candidates) + np.arange(task.num_tables)
    sums, counts, widths = np.zeros((1, 3, 32)), np.zeros((1, 3), np.int64), np.zeros((1, 3))
    for candidate in rng.permutation(task.num_tables):
        device = int(rng.integers(0, 3))
        state.add(int(candidate), device)
        sums[0, device] += across.latents(numbers[[candidate]])[0]
        counts[0, device] += 1
        widths[0, device] += task.tables[candidate].embedding_dim
        [ms] = across.placed_ms(sums, counts, widths, np.array([float(BATCH)]), np.array([4.0]))
        assert ms == state.total()


def test_a_judge_and_unknown_kinds_of_tasks_are_refused(judge, oracle, task, plans):
    with pytest.raises(InputError, match="role='oracle'"):
        AcrossTasks(judge)
    with pytest.raises(InputError, match="not trained on precision 'fp16'"):
        AcrossTasks(oracle).add(dataclasses.replace(task, precision="fp16"), plans[0].shards)


def test_columns_grow_and_keep_their_rows():
    columns, expected = Columns(a=((), np.int64), b=((2,), np.float64)), np.arange(500)
    for first in range(0, 500, 25):
        new = expected[first : first + 25]
        assert columns.append(a=new, b=np.stack([new, -new], axis=1)) == first
    assert len(columns) == 500
    np.testing.assert_array_equal(columns["a"], expected)
    np.testing.assert_array_equal(columns["b"], np.stack([expected, -expected], axis=1))
    with pytest.raises(ValueError, match="equally many rows of a, b"):
        columns.append(a=[1])
