"""The validity study: what it compares, that it goes on where it was stopped, and its figures."""

import json
import sys

import numpy as np
import pytest

from shardgym import PlanCost, ShardingTask

pytestmark = pytest.mark.repository
pytest.importorskip("scipy", reason="the study needs the extra 'dev'")


@pytest.fixture
def validity(script, monkeypatch):
    module = script("validity")
    monkeypatch.setattr(module, "SEARCHED", ("column_greedy",))
    monkeypatch.setattr(module, "PREDICTED", {"roofline": ("roofline", {})})
    return module


@pytest.fixture
def asked(validity, monkeypatch):
    """What the study had run, by toys that need no time; plan n takes n + 1 ms."""
    calls = []

    def run(task, plans, *, rounds, steps, warmups, seed, real_time, links):
        calls.append(("real", seed))
        return [[[n + 1.0] * steps] * rounds for n in range(len(plans))]

    def measured(folder, rounds, comm, turn):
        calls.append((comm, turn))
        count = len(validity.read_plans(folder)[1])
        return [PlanCost(np.full((2, 5), (n + 1) / 5), "fbgemm", "3", "toy").to_dict() for n in range(count)]

    monkeypatch.setattr(validity.real_step, "run", run)
    monkeypatch.setattr(validity.namespaces, "why_not", lambda: "")
    monkeypatch.setattr(validity, "measured_costs", measured)
    return calls


def start(validity, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["validity.py", *map(str, arguments)])
    validity.main()
    return capsys.readouterr()


def test_a_stopped_study_goes_on_and_reports_complete_tasks(validity, asked, monkeypatch, capsys, tmp_path):
    given = ("--out", tmp_path, "--tasks", "tiny-v1/1", "--plans", 5, "--rounds", 2)
    stopped = start(validity, monkeypatch, capsys, *given, "--minutes", 0)
    assert "the same command goes on" in stopped.err
    assert asked == []
    folder = tmp_path / "task-0"
    assert ShardingTask.load(folder / "task.json").num_devices == 2
    assert 3 <= len(validity.read_plans(folder)[1]) <= 5
    done = json.dumps({"task-0/real/0": [1.0] * len(validity.read_plans(folder)[1])})
    (tmp_path / "results.json").write_text(done)
    rows = json.loads(start(validity, monkeypatch, capsys, *given, "--json").out)
    measured = [[("measured", n), ("modelled", n)] for n in range(2)]
    assert asked == [*measured[0], ("real", 1), ("real", 2), *measured[1], ("real", 3)]
    by_cost = {row["cost"]: row for row in rows if row["plans"] == "all"}
    assert by_cost["fbgemm, exchanges measured"]["tau"] == pytest.approx(1)
    assert by_cost["fbgemm, exchanges measured"]["regret"] == 0
    start(validity, monkeypatch, capsys, *given)
    assert len(asked) == 7


def test_a_cost_is_held_against_both_halves(validity):
    real = np.array([[10.0, 20.0, 40.0], [10.0, 20.0, 40.0]])
    same = validity.agreement(real / 2, real)
    assert (same["tau"], same["regret"], same["level"]) == (1, 0, 0.5)
    assert same["slope"] == pytest.approx(1)
    turned = validity.agreement(real[:, ::-1].copy(), real)
    assert (turned["tau"], turned["regret"]) == (-1, 3)


def test_half_of_the_neighbours_are_worse_than_any_noise(validity):
    task = validity.load_suite("quick-v1")[0]
    plans = validity.choose_plans(task, 10)
    assert len(plans) == 10
    oracle = validity.make_cost("simulator")
    totals = [cost.total_ms for cost in oracle.evaluate(task, [plan for _, plan in plans])]
    known = [total for (kind, _), total in zip(plans, totals, strict=True) if "neighbour" not in kind]
    for name, low, high in (("neighbour", 1.0, 1.1), ("worse neighbour", 1.1, 2.0)):
        ratios = [total / min(known) for (kind, _), total in zip(plans, totals, strict=True) if kind == name]
        assert len(ratios) >= 2
        assert all(low <= ratio < high for ratio in ratios)


def test_a_cut_gives_both_devices_half_of_the_widest_shards(validity):
    task = validity.load_suite("tiny-v1")[1]
    plan = validity.make_solver("dim_greedy").solve(task, validity.make_cost("roofline"), seed=0)
    halved = validity.cut(plan, 1, 2)
    assert validity.fits(halved, task) or halved.bytes_per_device(task) != plan.bytes_per_device(task)
    assert len(halved.shards) == len(plan.shards) + 1
    assert {shard.devices[0] for shard in set(halved.shards) - set(plan.shards)} == {0, 1}
