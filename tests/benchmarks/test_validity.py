"""The validity study: what it compares, that it goes on where it was stopped, and its figures."""

import json
import sys

import numpy as np
import pytest

from shardgym import PlanCost, ShardingPlan, ShardingTask

pytestmark = pytest.mark.repository

TINY = "tiny-v1-1-on-2-by-500.json.xz"


@pytest.fixture
def validity(script, monkeypatch):
    module = script("validity")
    monkeypatch.setattr(module, "SEARCHED", ("column_greedy",))
    return module


@pytest.fixture
def agree(validity):
    return sys.modules["validity_report"]


@pytest.fixture
def asked(validity, monkeypatch):
    """What the study had run, by toys that need no time; plan n takes n + 1 ms, and twice that by TorchRec."""
    calls = []

    def run(task, plans, *, rounds, steps, warmups, seed):
        assert (task.num_devices, task.topology.intra_bandwidth) == (2, 500e6 / 8)
        assert plans[0].shards
        calls.append(f"real/{seed}")
        return [[[n + 1.0] * steps] * rounds for n in range(len(plans))]

    def measured(task, plans, turn):
        calls.append(f"fbgemm/{turn}")
        return [PlanCost(np.full((2, 5), (n + 1) / 5), "fbgemm", "3", "toy").to_dict() for n in range(len(plans))]

    def torchrec(task, plans, launch):
        calls.append(f"torchrec/{launch}")
        return [2.0 * n + 2 for n in range(len(plans))]

    monkeypatch.setattr(validity.real_step, "real_ms", run)
    monkeypatch.setattr(validity.namespaces, "why_not", lambda: "")
    monkeypatch.setattr(validity, "measured_costs", measured)
    monkeypatch.setattr(validity, "torchrec_ms", torchrec)
    return calls


def start(validity, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["validity.py", *map(str, arguments)])
    validity.main()
    return capsys.readouterr()


def test_a_stopped_study_goes_on_and_reports_complete_tasks(validity, asked, monkeypatch, capsys, tmp_path):
    given = ("--out", tmp_path, "--tasks", "tiny-v1/1", "--plans", 6, "--links", 500)
    stopped = start(validity, monkeypatch, capsys, *given, "--minutes", 0)
    assert "the same command goes on" in stopped.err
    assert asked == []
    content = validity.load(tmp_path / TINY)
    assert content["kinds"][0] == "best"
    assert 3 <= len(content["plans"]) <= 6
    content["done"] = {"real/0": [n + 1.0 for n in range(len(content["plans"]))]}
    validity.save(tmp_path / TINY, content)
    tables = json.loads(start(validity, monkeypatch, capsys, *given, "--json").out)
    assert asked == ["fbgemm/0", "real/1", "real/2", "fbgemm/1", "real/3"]
    by_cost = {row["cost"]: row for row in tables["2 devices, against real steps"]}
    assert by_cost["fbgemm"]["tau"] == by_cost["real"]["tau"] == [pytest.approx(1)]
    assert by_cost["fbgemm"]["behind"] == [pytest.approx(0)]
    assert by_cost["fbgemm"]["level"] == [pytest.approx(1)]
    with_torchrec = start(validity, monkeypatch, capsys, *given, "--torchrec", "--json").out
    assert asked[5:] == ["torchrec/0", "torchrec/1"]
    rows = json.loads(with_torchrec)["2 devices, against torchrec steps"]
    assert [row["cost"] for row in rows[:3]] == ["torchrec", "real", "fbgemm"]
    assert [row["level"] for row in rows[:3]] == [[pytest.approx(level)] for level in (1, 0.5, 0.5)]
    assert start(validity, monkeypatch, capsys, "--out", tmp_path, "--report", "--json").out == with_torchrec
    assert "| fbgemm" in start(validity, monkeypatch, capsys, "--out", tmp_path, "--report").out


@pytest.mark.torchrec
def test_real_steps_run(validity, monkeypatch, tmp_path):
    """Ours and TorchRec's, of one plan."""
    pytest.importorskip("torchrec", reason="needs TorchRec")
    if reason := validity.namespaces.why_not():
        pytest.skip(reason)
    monkeypatch.setattr(validity, "_TORCHREC_ROUNDS", 1)
    monkeypatch.setattr(validity, "_TORCHREC_STEPS", 1)
    content = validity.load(validity.prepare(tmp_path, "tiny-v1/1", 1, 2, 500))
    task = ShardingTask.from_dict(content["task"])
    plans = [ShardingPlan.from_dict(plan) for plan in content["plans"]]
    monkeypatch.setattr(validity, "REAL_EFFORT", {"rounds": 1, "steps": 1, "warmups": 1})
    assert validity.real_ms(task, plans, 0)[0] > 0
    assert np.isfinite(validity.torchrec_ms(task, plans, 0)).all()


def test_a_cost_is_held_against_both_halves(agree):
    real = np.array([[10.0, 20.0, 40.0], [10.0, 20.0, 40.0]])
    same = agree.agreement(real / 2, real)
    assert (same["tau"], same["regret"], same["level"]) == (1, 0, 0.5)
    assert agree.agreement(real[:, ::-1].copy(), real)["tau"] == -1


def test_close_pairs_are_those_that_real_steps_have_close(agree):
    real = np.array([100.0, 104.0, 108.0, 200.0])
    assert agree.close_pairs(np.array([1.0, 2.0, 3.0, 0.0]), real) == 1
    assert agree.close_pairs(np.array([2.0, 1.0, 3.0, 4.0]), real) == 0.5
    assert np.isnan(agree.close_pairs(np.array([1.0, 2.0]), np.array([1.0, 2.0])))
