"""Calibration: costs are brought to the level of a machine, and only of the weights that it was fitted to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

from neuroshard.plus.solver import NeuroShardPlus
from shardgym import (
    EmbeddingTable,
    InputError,
    MeasurementError,
    Shard,
    ShardingPlan,
    ShardingTask,
    Topology,
    make_cost,
)
from shardgym.cli import main
from shardgym.costs.calibration import Calibration
from shardgym.costs.link_model import shipped_model
from shardgym.costs.plan_cost import COMPUTE_COLUMNS
from shardgym.costs.simulator.sample_files import DataInfo, write_rows
from shardgym.costs.step_parts import LINES
from shardgym.training import calibrate as module
from shardgym.training.calibrate import calibrate

SLOWER = 3.0


@pytest.fixture
def slow_machine(made_up_rows, tmp_path, monkeypatch):
    """Measurements of a machine that computes three times as slowly; plans come in threes of a task."""
    rows = [
        dataclasses.replace(
            row, forward_ms=SLOWER * row.forward_ms, backward_ms=SLOWER * row.backward_ms, plan=f"t/{n // 3}/{n % 3}"
        )
        for row in made_up_rows["steps"]
        for n in [int(row.plan.split("/")[1])]
        if row.role == "oracle" and row.repeat == 0
    ]
    info = DataInfo("steps", "slow", {}, {}, "2026-01-01T00:00:00+00:00")
    write_rows(tmp_path / "steps-0.parquet", rows, info)
    monkeypatch.setattr(module, "collect", lambda folder, **options: None)
    return tmp_path


def test_the_level_of_another_machine_is_found(slow_machine, model, task, plans):
    found = calibrate(slow_machine, model)
    assert (found.hardware, found.plans) == ("slow", 60)
    assert Calibration.load(slow_machine / "calibration.json") == found
    before, after = found.before["simulator"], found.after["simulator"]
    assert before.compute_error > 0.5
    assert after.compute_error < 0.15
    assert abs(after.level - 1) < 0.1
    assert after.kendall_tau >= before.kendall_tau - 0.1
    assert found.after["roofline"].total_error < found.before["roofline"].total_error
    path = slow_machine / "calibration.json"
    calibrated, plain = make_cost("simulator", weights=model, calibration=path), make_cost("simulator", weights=model)
    ratios = [
        slow.compute_ms.sum() / fast.compute_ms.sum()
        for slow, fast in zip(calibrated.evaluate(task, plans), plain.evaluate(task, plans), strict=True)
    ]
    assert np.array(ratios) == pytest.approx(SLOWER, rel=0.25)
    assert calibrated.hardware == "slow"
    assert calibrated.version != plain.version
    assert calibrated.settings()["calibration"] == str(path)
    roofline = make_cost("roofline", calibration=path)
    assert roofline.hardware == "slow"
    assert roofline.evaluate(task, plans)[0].total_ms != make_cost("roofline").evaluate(task, plans)[0].total_ms


def test_a_second_operator_is_as_slow_as_the_first(slow_machine, model):
    """A table that all devices hold has an operator of its own; all compute of a calibrated roofline has one factor."""
    found = calibrate(slow_machine, model)
    tables = tuple(EmbeddingTable(name, 1000, 16, 4.0) for name in "ab")
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=512)
    plan = ShardingPlan.of(task, [Shard.whole(tables[0], 0, 1), Shard.whole(tables[1], 0)])
    plain, calibrated = (
        make_cost("roofline", **settings).evaluate(task, [plan])[0].per_device[:, COMPUTE_COLUMNS]
        for settings in ({}, {"calibration": slow_machine / "calibration.json"})
    )
    np.testing.assert_allclose(calibrated, plain * found.roofline, rtol=1e-6)


def test_groups_that_a_calibration_does_not_price_are_not_searched(slow_machine, model):
    calibrate(slow_machine, model)
    links = {"intra_bandwidth": 1e9, "inter_bandwidth": 1e7}
    topology = Topology(num_devices=4, memory_bytes=2**40, fast_domain_size=2, **links)
    tables = tuple(EmbeddingTable(f"t{n}", 1_000_000, 64, 4.0) for n in range(4))
    task = ShardingTask(tables, topology, batch_size=65_536, group_sync_interval=1000)
    for settings, size in (({}, 2), ({"calibration": slow_machine / "calibration.json"}, None)):
        cost = make_cost("roofline", **settings)
        plan = NeuroShardPlus(kicks=1).solve(task, cost)
        assert plan.group_size == size
        assert cost.evaluate(task, [plan])[0].feasible


def test_a_calibration_of_other_weights_or_devices_is_refused(slow_machine, model, task, plans):
    calibrate(slow_machine, model)
    path = slow_machine / "calibration.json"
    with pytest.raises(InputError, match=r"calibration: fitted to weights .*, these are .*: run 'shardgym calibrate'"):
        make_cost("simulator", calibration=path)
    with pytest.raises(InputError, match="not of these weights"):
        make_cost("simulator", weights=model, role="judge", calibration=path)
    on_gpus = dataclasses.replace(task, topology=Topology.preset("dgx-h100", 3))
    with pytest.raises(InputError, match="calibration"):
        make_cost("roofline", calibration=path).evaluate(
            on_gpus, [dataclasses.replace(plans[0], task_hash=on_gpus.digest)]
        )


def test_a_calibrated_roofline_all_reduces_gradients_of_replicas_once_and_knows_no_groups(slow_machine, model, task):
    lines = calibrate(slow_machine, model).lines
    shards = [Shard.whole(table, *range(task.num_devices)) for table in task.tables]
    roofline = make_cost("roofline", calibration=slow_machine / "calibration.json")
    replicated = roofline.evaluate(task, [ShardingPlan.of(task, shards)])[0]
    four = dataclasses.replace(task, topology=task.topology.roomy(4))
    pairs = ShardingPlan.of(four, [Shard.whole(table, 0, 2) for table in task.tables], group_size=2)
    grouped = roofline.evaluate(four, [pairs])[0]
    each = sum(table.num_embeddings * table.embedding_dim for table in task.tables) * 4 / task.num_devices
    half_ms = shipped_model().exit_ms(task.topology, np.zeros(3), np.full((3, 3), each))
    np.testing.assert_allclose(replicated.per_device[:, 3], lines[list(LINES).index("pack_gradients")][0] + 2 * half_ms)
    assert grouped.reason == "calibration: of steps without groups, and the plan has groups of 2: leave it out"


def test_too_few_plans_are_an_error(slow_machine, model, monkeypatch):
    monkeypatch.setattr(module, "_LEAST_PLANS", 61)
    with pytest.raises(MeasurementError, match="60 plans could be measured, a calibration takes 61 at least"):
        calibrate(slow_machine, model)


def test_the_command_shows_agreement_before_and_after(slow_machine, model, capsys):
    assert main(["calibrate", "--out", str(slow_machine), "--weights", str(model)]) == 0
    out = capsys.readouterr().out
    assert "slow, 60 plans" in out
    assert "roofline" in out
