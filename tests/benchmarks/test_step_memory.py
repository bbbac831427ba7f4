"""Page faults of steps: they are counted by part, and the report says what they do to agreement."""

from __future__ import annotations

import json
import mmap

import numpy as np
import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from shardgym import PlanCost, ShardingPlan, load_suite
from shardgym.costs.fbgemm import step, step_rank
from shardgym.costs.fbgemm.jobs import shard_sets

pytestmark = [
    pytest.mark.repository,
    pytest.mark.torchrec,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
PAGES = 64
PARTS = len(step.PARTS)


@pytest.fixture
def folder(tmp_path):
    """A finished study of three plans on two devices."""
    task = load_suite("tiny-v1")[0]
    (tmp_path / "task.json").write_text(task.to_json())
    for number in range(3):
        plan = ShardingPlan.table_wise(task, [int(i <= number) for i in range(task.num_tables)])
        (tmp_path / f"plan-{number}.json").write_text(plan.to_json())
    (tmp_path / "plans.json").write_text(json.dumps({"kinds": ["greedy"] * 3}))
    done = {f"real/{n}": [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]] for n in range(4)}
    for version in "123":
        done |= {f"fbgemm {version}/{n}": toys(3, version) for n in range(2)}
    (tmp_path / "results.json").write_text(json.dumps(done))
    return tmp_path


def toys(count, version):
    """Return costs of plans, each dearer than the one before, as records."""
    return [PlanCost([[1.0] + [n + 1.0] * 4] * 2, "toy", version, "toy").to_dict() for n in range(count)]


def test_faults_are_counted_by_part_without_those_of_warmups(script, monkeypatch):
    rank = script("step_faults_rank")

    def fake_start(settings):
        def handler(job):
            for number in range(len(job.batches)):
                clock = step_rank.Clock()
                clock.mark()
                with mmap.mmap(-1, mmap.PAGESIZE * PAGES * (1 if number else 4)) as fresh:
                    fresh[:: mmap.PAGESIZE] = bytes(len(fresh) // mmap.PAGESIZE)
                clock.mark()
                clock.mark()
            return "marks"

        return handler, {"rank": settings["rank"]}

    monkeypatch.setattr(step_rank, "Clock", step_rank.Clock)
    monkeypatch.setattr(step_rank, "start", fake_start)
    answer, facts = rank.start({"rank": 1})
    for _ in range(2):
        marks, faults = answer(step.StepJob((), (0, 1, 2), 1, 0))
        assert marks == "marks"
        assert faults.shape == (2, 2)
        assert ((faults[:, 0] >= PAGES) & (faults[:, 0] < 2 * PAGES)).all()
        assert (faults[:, 1] < PAGES).all()
    assert facts == {"rank": 1}


def test_a_plan_gets_the_faults_of_its_own_jobs(script, folder, monkeypatch):
    memory = script("step_memory")
    task = memory.ShardingTask.load(folder / "task.json")
    plans = [ShardingPlan.load(folder / f"plan-{n}.json") for n in range(3)]
    numbers = {tuple(shard_sets(task, plan)): n for n, plan in enumerate(plans)}

    def ask(self, messages):
        job = messages[0]
        steps = len(job.batches) - job.warmups
        marks = step.StepMarks(
            np.tile(np.arange(PARTS + 1.0), (steps, 1)),
            np.tile(np.arange(PARTS + 1.0), (steps, 1)) / 1e3,
            np.ones((steps, 3, len(messages)), dtype=np.int64),
        )
        faults = np.full((steps, PARTS), 10 * numbers[job.shard_sets])
        return [(marks, faults), (marks, faults + 1)]

    monkeypatch.setattr(memory.CollectiveGroup, "ask", ask)
    costs, faults = memory.run_steps(folder, 2, 0)
    assert faults == [[10 * n + 1] * PARTS for n in range(3)]
    assert [PlanCost.from_dict(cost).per_device[0, 0] for cost in costs] == [pytest.approx(1)] * 3


def test_a_row_for_each_step_and_setting(script, folder, monkeypatch, capsys):
    memory = script("step_memory")
    assert memory.report(folder) == []
    for name, pages in (("as it is", 100), ("kept", 0)):
        done = {
            "costs": [toys(3, "2")] * 2,
            "faults": [[[pages * n] * PARTS for n in range(3)]] * 2,
            "real": [[[3.0, 2.0, 1.0], [1.0, 1.0, 1.0], [pages, pages, pages]]] * 2,
        }
        memory.stored(folder, name).write_text(json.dumps(done))
    page = folder / "page.md"
    page.write_text("<!-- memory -->\nnot yet\n<!-- end -->\n")
    monkeypatch.setattr("sys.argv", ["x", "--out", str(folder), "--report", "--json", "--page", str(page)])
    memory.main()
    rows = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["freed memory"]) for row in rows] == [
        (kind, name) for name in ("as it is", "kept") for kind in ("fbgemm 2", "TorchRec")
    ]
    ours, theirs = rows[:2]
    assert (ours["faults"], ours["of gradients"]) == (100 * PARTS, 200)
    assert (ours["tau wall"], ours["tau cpu"]) == (1, -1)
    assert (theirs["tau wall"], theirs["faults"], theirs["ms"]) == (-1, 100, 2)
    assert page.read_text().count("|\n") == 2 + len(rows)


@pytest.mark.slow
def test_both_settings_are_measured(script, folder, monkeypatch, capsys):
    memory = script("step_memory")
    monkeypatch.setattr("sys.argv", ["x", "--out", str(folder), "--rounds", "1", "--json"])
    memory.main()
    rows = json.loads(capsys.readouterr().out)
    assert all(row["ms"] > 0 for row in rows)
    assert len(rows) == 4
