"""The study of TorchRec steps: plans train, what is done is kept, and reversals are counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from shardgym import ShardingPlan, load_suite, make_cost

pytestmark = [
    pytest.mark.repository,
    pytest.mark.torchrec,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def folder(tmp_path):
    """A task and two plans, as `prepare` leaves them."""
    task = load_suite("tiny-v1")[0]
    (tmp_path / "task.json").write_text(task.to_json())
    for number, first in enumerate((0, 1)):
        plan = ShardingPlan.table_wise(task, [(first + i) % task.num_devices for i in range(task.num_tables)])
        (tmp_path / f"plan-{number}.json").write_text(plan.to_json())
    (tmp_path / "plans.json").write_text(json.dumps({"kinds": ["greedy", "greedy"]}))
    return tmp_path


def test_plans_train_on_two_ranks(script, folder):
    times = np.array(script("torchrec_step").real_ms(folder, rounds=1, steps=1, launch=0))
    assert times.shape == (2, 2)
    assert (times > 0).all()


def test_a_row_for_each_cost_and_clock_once_all_is_done(script, folder, monkeypatch, capsys):
    study = script("torchrec_step")
    monkeypatch.setattr(study, "real_ms", lambda *_: [[10.0, 12.0], [8.0, 9.0]])
    costs = make_cost("roofline").evaluate(script("validity").ShardingTask.load(folder / "task.json"), [
        ShardingPlan.load(folder / f"plan-{n}.json") for n in range(2)
    ])  # fmt: skip
    monkeypatch.setattr(study.validity, "measured_costs", lambda *_: [cost.to_dict() for cost in costs])
    study.study(folder, 1, 1, deadline=0.0)
    assert "the same command goes on" in capsys.readouterr().err
    assert study.report(folder) == []
    study.study(folder, 1, 1, deadline=float("inf"))
    rows = study.report(folder)
    names = ["the real step", "fbgemm 1", "fbgemm 2", "simulator", "simulator, judge", "roofline", "torchrec_rating"]
    assert [(row["step by"], row["cost"]) for row in rows] == [(c, n) for c in ("wall", "cpu") for n in names]
    assert rows[0]["tau"] == 1.0
    page = folder / "page.md"
    page.write_text("<!-- step -->\nnot yet\n<!-- end -->\n")
    monkeypatch.setattr("sys.argv", ["x", "--out", str(folder), "--report", "--page", str(page)])
    study.main()
    header, _, *lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert all(f" {name} " in header for name in ("tau", "tau_half", "slope", "regret", "preferred", "reversed"))
    assert len(lines) == len(rows)


def test_the_command_prepares_tasks_and_plans(script, monkeypatch, capsys, tmp_path):
    study = script("torchrec_step")
    monkeypatch.setattr(study.validity, "SEARCHED", ("column_greedy",))
    monkeypatch.setattr("sys.argv", ["x", *f"--out {tmp_path} --task tiny-v1/0 --plans 4 --minutes 0 --json".split()])
    study.main()
    assert json.loads(capsys.readouterr().out) == []
    assert len(study.validity.read_plans(tmp_path)[1]) == 4


def test_a_pair_is_reversed_when_both_passes_say_so(script):
    own = np.array([[1.0, 1.2, 1.22]] * 2)
    real = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 4.0]])
    assert script("torchrec_step").reversals(own, real) == {
        "preferred": 2, "reversed": 1, "worst": pytest.approx(0.5),
    }  # fmt: skip
