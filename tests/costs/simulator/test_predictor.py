"""Predictor: the costs of `evaluate`, whatever is predicted in the same call, and those of earlier versions."""

import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from random_tasks import random_task

from shardgym import InputError, Shard, ShardingPlan, load_suite, make_cost
from shardgym.costs.links import COLUMNS
from shardgym.costs.shard_keys import PlanBatch
from shardgym.costs.simulator import predictor as predictor_module

#: Sums of the same numbers in another order, or in other batches, differ by less.
ENOUGH = 1e-9
GOLDEN = json.loads((Path(__file__).parent / "golden_predictions.json").read_text())

#: Every device has room for all tables.
ROOM = 100.0


def random_plans(task, count, seed):
    """Plans of which some leave devices empty."""
    rng = np.random.default_rng(seed)
    most = rng.integers(1, task.num_devices + 1, count)
    return [ShardingPlan.table_wise(task, rng.integers(0, m, task.num_tables).tolist()) for m in most]


def costs_together(predictor, tasks, plans):
    """Predict all plans, of `tasks[n]` each, in one call."""
    shards = [predictor.encode(task, plan.shards) for task, plan in zip(tasks, plans, strict=True)]
    devices = [[shard.devices[0] for shard in plan.shards] for plan in plans]
    counts = np.array([len(plan.shards) for plan in plans])
    return predictor.plan_costs(
        PlanBatch(tasks[0].num_devices, counts, np.concatenate(shards), np.concatenate(devices))
    )


def golden_plans(task, seed):
    """A random plan of whole tables, and one in which a third of the tables is halved by columns, a third by rows."""
    rng = np.random.default_rng(seed)
    placements = rng.integers(0, task.num_devices, (2, task.num_tables)).tolist()
    shards = []
    for number, (table, device) in enumerate(zip(task.tables, placements[1], strict=True)):
        rows, columns = table.num_embeddings, table.embedding_dim
        half, other = columns // 8 * 4, (device + 1) % task.num_devices
        if number % 3 == 0 and half:
            shards += [Shard(table.name, (0, rows), (0, half), device)]
            shards += [Shard(table.name, (0, rows), (half, columns), other)]
        elif number % 3 == 1 and rows > 1:
            shards += [Shard(table.name, (0, rows // 2), (0, columns), device)]
            shards += [Shard(table.name, (rows // 2, rows), (0, columns), other)]
        else:
            shards.append(Shard.whole(table, device))
    return [ShardingPlan.table_wise(task, placements[0]), ShardingPlan.of(task, shards)]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: "-".join(map(str, golden["of"])))
def test_the_shipped_weights_predict_what_they_always_did(golden):
    """Recorded when these weights were trained; plans are scored whether there is room for them or not."""
    role, suite, number = golden["of"]
    task = load_suite(suite)[number]
    simulator = make_cost("simulator", role=role)
    costs = simulator.score(task, golden_plans(task, number))
    for found, expected in zip(costs, golden["costs"], strict=True):
        np.testing.assert_allclose(found.per_device, expected["per_device"], rtol=ENOUGH)
        assert list(found.notes) == [*simulator.notes(task), *expected["notes"]]


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
@pytest.mark.parametrize("shards_at_once", [1, 40, 2048])
def test_costs_of_many_tasks_are_those_of_evaluate(oracle, model, devices, shards_at_once, monkeypatch):
    monkeypatch.setattr(predictor_module, "_SHARDS_AT_ONCE", shards_at_once)
    few, fewer, many = (random_task(seed, tables, devices, ROOM) for seed, tables in enumerate((9, 2, 30)))
    kinds = [few, fewer, dataclasses.replace(many, batch_size=2**16)]
    tasks = [kinds[n % 3] for n in range(24)]
    plans = [random_plans(task, 1, seed)[0] for seed, task in enumerate(tasks)]
    alone = make_cost("simulator", weights=model)
    expected = [alone.evaluate(task, [plan])[0] for task, plan in zip(tasks, plans, strict=True)]
    for ours, theirs in zip(costs_together(oracle.predictor(), tasks, plans), expected, strict=True):
        np.testing.assert_allclose(ours.per_device, theirs.per_device, rtol=ENOUGH)
        assert dataclasses.replace(ours, per_device=theirs.per_device) == theirs
    # Large batches, and eight devices, leave the range of the training data.
    assert len({cost.notes for cost in expected}) > 1


def test_halves_of_a_table_have_one_number_and_shards_are_encoded_once(oracle, task):
    predictor = oracle.predictor()
    table = max(task.tables, key=lambda table: table.embedding_dim)
    rows, half = (0, table.num_embeddings), table.embedding_dim // 2
    halves = [Shard(table.name, rows, (0, half), 0), Shard(table.name, rows, (half, 2 * half), 1)]
    first = predictor.encode(task, [*halves, Shard.whole(table, 2)])
    assert first[0] == first[1] != first[2]
    assert predictor.encode(task, [Shard.whole(table, 0), halves[1]]).tolist() == first[[2, 0]].tolist()
    assert predictor.loads(first)[:, COLUMNS].tolist() == [half, half, 2 * half]


def test_a_predictor_can_be_pickled_with_what_it_knows(oracle, task, plans):
    predictor = oracle.predictor()
    expected = costs_together(predictor, [task] * len(plans), plans)
    assert costs_together(pickle.loads(pickle.dumps(predictor)), [task] * len(plans), plans) == expected


def test_more_tasks_than_are_kept_cost_the_same(oracle, task, plans, monkeypatch):
    monkeypatch.setattr("shardgym.costs.simulator.cost._TASKS_KEPT", 2)
    before = oracle.evaluate(task, plans)
    for seed in range(5):
        other = random_task(seed, 4, 3, ROOM)
        oracle.evaluate(other, random_plans(other, 2, seed))
    assert oracle._predictor.num_tasks <= 3
    assert oracle.evaluate(task, plans) == before


def test_a_judge_scores_whole_plans_only(judge):
    with pytest.raises(InputError, match="role='oracle'"):
        judge.predictor()
