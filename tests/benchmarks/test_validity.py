"""The validity study: what it compares, that it goes on where it was stopped, and its figures."""

import sys

import numpy as np
import pytest

from shardgym import ShardingPlan, ShardingTask

TINY = "tiny-v1-1-on-2-by-500.json.xz"


@pytest.fixture
def validity(tool, monkeypatch):
    monkeypatch.setattr(tool, "SOLVERS", {"column_greedy": {}, "random": {}})
    return tool


@pytest.fixture
def agree(validity):
    return sys.modules["validity_report"]


@pytest.fixture
def asked(validity, monkeypatch):
    """What the study had run, by toys that need no time: plan n takes 2 n + 2 ms, and half as long by the cost."""
    calls = []

    def real(task, plans, launch):
        assert (task.num_devices, task.topology.intra_bandwidth) == (2, 500e6 / 8)
        assert plans[0].shards
        calls.append(f"real/{launch}")
        return [2.0 * n + 2 for n in range(len(plans))]

    def measured(task, plans, turn):
        calls.append(f"fbgemm/{turn}")
        return [n + 1.0 for n in range(len(plans))]

    monkeypatch.setattr(validity.namespaces, "why_not", lambda: "")
    monkeypatch.setattr(validity, "fbgemm_ms", measured)
    monkeypatch.setattr(validity, "real_ms", real)
    return calls


def test_a_stopped_study_goes_on_and_reports_complete_tasks(validity, agree, asked, monkeypatch, capsys, tmp_path):
    def start(minutes):
        given = ["--out", tmp_path, "--tasks", "tiny-v1/1", "--plans", 6, "--links", 500, "--minutes", minutes]
        monkeypatch.setattr(sys, "argv", ["validity.py", *map(str, given)])
        validity.main()
        return capsys.readouterr()

    assert "the same command resumes" in start(1e-9).err
    assert asked == []
    content = validity.load(tmp_path / TINY)
    assert content["kinds"][0] == "best"
    assert 3 <= len(content["plans"]) <= 6
    content["done"] = {"real/0": [2.0 * n + 2 for n in range(len(content["plans"]))]}
    validity.save(tmp_path / TINY, content)
    assert start(0).out == ""
    shown = start(1).out
    assert asked == ["fbgemm/0", "real/1", "real/2", "fbgemm/1", "real/3"]
    (rows,) = agree.tables_of(tmp_path).values()
    by_cost = {row["cost"]: row for row in rows}
    assert by_cost["fbgemm"]["tau"] == by_cost["real"]["tau"] == pytest.approx(1)
    assert by_cost["fbgemm"]["behind"] == pytest.approx(0)
    assert by_cost["fbgemm"]["level"] == pytest.approx(0.5)
    assert {"simulator", "roofline", "torchrec_rating"} < by_cost.keys()
    assert "2 devices, 1 tasks" in shown
    assert "| fbgemm" in shown
    assert start(0).out == shown


@pytest.mark.torchrec
def test_real_steps_run(validity, monkeypatch, tmp_path):
    pytest.importorskip("torchrec", reason="needs TorchRec")
    if reason := validity.namespaces.why_not():
        pytest.skip(reason)
    monkeypatch.setattr(validity, "TURNS", 1)
    content = validity.load(validity.prepare(tmp_path, "tiny-v1/1", 2, 2, 500))
    task = ShardingTask.from_dict(content["task"])
    plans = [ShardingPlan.from_dict(plan) for plan in content["plans"]]
    assert (np.array(validity.real_ms(task, plans, 0)) > 0).all()


def test_close_pairs_are_those_that_real_steps_have_close(agree):
    real = np.array([100.0, 104.0, 108.0, 200.0])
    assert agree.close_pairs(np.array([1.0, 2.0, 3.0, 0.0]), real) == [True, True]
    assert agree.close_pairs(np.array([2.0, 1.0, 3.0, 4.0]), real) == [False, True]
    assert np.isnan(agree.agreement(np.array([[1.0, 2.0]] * 2), np.array([[1.0, 3.0]] * 2))["close"])
