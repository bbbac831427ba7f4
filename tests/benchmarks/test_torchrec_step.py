"""The study of TorchRec steps: plans train, what is done is kept, and reversals are counted."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from shardgym import PlanCost, ShardingPlan, load_suite, make_cost

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
    wall, cpu, faults = np.array(script("torchrec_step").real_ms(folder, rounds=1, steps=1, launch=0))
    assert wall.shape == cpu.shape == (2,)
    assert (wall > 0).all()
    assert (cpu > 0).all()
    assert np.array_equal(faults, faults.round())


def test_a_row_for_each_cost_and_clock_once_all_is_done(script, folder, monkeypatch, capsys):
    study = script("torchrec_step")
    monkeypatch.setattr(study, "real_ms", lambda *_: [[10.0, 12.0], [8.0, 9.0]])
    costs = make_cost("roofline").evaluate(script("validity").ShardingTask.load(folder / "task.json"), [
        ShardingPlan.load(folder / f"plan-{n}.json") for n in range(2)
    ])  # fmt: skip
    monkeypatch.setattr(study.validity, "measured_costs", lambda *_: [cost.to_dict() for cost in costs])
    study.validity.study(folder, study.units(folder, 1, 1), deadline=0.0)
    assert "the same command goes on" in capsys.readouterr().err
    assert study.finished(folder) is None
    study.validity.study(folder, study.units(folder, 1, 1), deadline=float("inf"))
    rows = study.report(study.finished(folder))
    names = [
        "the real step", "fbgemm 1", "fbgemm 2", "fbgemm 3", "2 without ids", "2, compute alone", "1, compute alone",
        "simulator", "simulator, judge", "roofline", "torchrec_rating",
    ]  # fmt: skip
    assert [(row["step by"], row["cost"]) for row in rows] == [(c, n) for c in ("wall", "cpu") for n in names]
    assert rows[0]["tau"] == 1.0
    page = folder / "page.md"
    page.write_text("<!-- step -->\nnot yet\n<!-- end -->\n<!-- parts -->\nnot yet\n<!-- end -->\n")
    monkeypatch.setattr("sys.argv", ["x", "--out", str(folder), "--report", "--page", str(page)])
    study.main()
    step, parts = ([line for line in block.splitlines() if line.startswith("|")] for block in filled(page))
    assert all(f" {name} " in step[0] for name in ("tau", "tau_half", "slope", "regret", "preferred", "reversed"))
    assert len(step) == len(rows) + 2
    assert len(parts) == 2 + 2 + 3 * (1 + 4)  # toys have no ids
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["x", "--out", str(folder), "--report", "--parts", "--json"])
    study.main()
    assert [row["part"] for row in json.loads(capsys.readouterr().out)][:3] == [
        "the real step, wall", "the real step, cpu", "fbgemm 1",
    ]  # fmt: skip


def filled(page):
    """Return the blocks of a page."""
    return page.read_text().split("<!-- end -->")[:2]


def test_a_part_says_what_it_follows(script, folder):
    study = script("torchrec_step")
    task = script("validity").ShardingTask.load(folder / "task.json")
    rng = np.random.default_rng(0)
    plans = [
        ShardingPlan.table_wise(task, [0, *rng.integers(0, task.num_devices, task.num_tables - 1)]) for _ in range(40)
    ]
    widest = np.array([study.pooled_widths(task, plan).max() for plan in plans])

    def cost(width):
        # The first device waits 5 ms in the forward exchange; what it takes is half a ms per 10 columns.
        return PlanCost(np.array([[1, 1, 5 + width / 20, 2, 3], [2, 4, width / 20, 2.5, 6]]), "toy", "1", "toy")

    halves = [[cost(width) for width in widest] for _ in range(2)]
    real = np.array([[widest + 10.0, 10.0 - widest]] * 2)
    rows = study.breakdown(study.Study(task, plans, real, {"1": halves, "2": halves}))
    by_part = {row["part"]: row for row in rows}
    exchange = by_part["2, output exchange"]
    assert exchange["per 100 columns"] == pytest.approx(5)
    assert exchange["per 10 lookups"] == pytest.approx(0, abs=1e-9)
    assert (exchange["tau wall"], exchange["tau cpu"], exchange["repeat"]) == (1, -1, pytest.approx(1))
    assert exchange["ms"] == pytest.approx(widest.mean() / 20)
    assert [by_part[f"2, {name}"]["ms"] for name in ("forward", "gradient exchange", "backward", "ids")] == [4, 2, 6, 2]
    assert by_part["2, ids"]["sd"] == by_part["2, ids"]["repeat"] == 0


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
