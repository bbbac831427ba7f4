"""evaluate: what is recorded, who sees which cost model, and what failures become."""

import json
import re
from pathlib import Path

import pytest
from evaluation_toys import TOY, BrokenCost, CountCost, Halves, Spies, ToySuite, toy_tasks

from shardgym import InputError, Result, evaluate, load_suite
from shardgym.errors import UnknownNameError
from shardgym.evaluation import SolverSpec, read_records


def run(out, *solvers, suite=None, judge=None, **options):
    suite = suite if suite is not None else ToySuite(toy_tasks())
    oracle = options.pop("oracle", "roofline")
    return evaluate(suite, [TOY + s for s in solvers], out=out, judge=judge or CountCost(), oracle=oracle, **options)


def test_one_record_per_task_solver_and_seed_with_the_judges_cost(tmp_path):
    """Halves puts 2 shards on each device; task i adds i / 10 ms to device 0."""
    results = run(tmp_path, "Halves", "Lopsided", seeds=[0, 7])
    assert [(r.task_index, r.solver.removeprefix(TOY), r.seed) for r in results] == [
        (task, solver, seed) for task in range(3) for solver in ("Halves", "Lopsided") for seed in (0, 7)
    ]
    assert [r.total_ms for r in results[::2]] == pytest.approx([2.0, 3.0, 2.1, 3.1, 2.2, 3.2])


def test_the_judge_scores_all_plans_of_a_task_in_one_call(tmp_path):
    judge = CountCost()
    run(tmp_path, "Halves", "Lopsided", "GivesUp", judge=judge)
    assert judge.calls == [("toys/0", 2), ("toys/1", 2), ("toys/2", 2)]


def test_judge_and_oracle_of_one_name_are_two_objects(tmp_path, monkeypatch):
    """The solver's oracle never gets to score: counted by the calls on each object."""
    made = []
    original = CountCost.__init__
    monkeypatch.setattr(CountCost, "__init__", lambda self, tag="toy": (original(self, tag), made.append(self))[0])
    Spies.seen.clear()
    run(tmp_path, "Spies", judge=TOY + "CountCost", oracle=TOY + "CountCost", isolate=False)
    assert len(made) == 2
    scoring = [cost for cost in made if cost.calls]
    assert len(scoring) == 1
    assert scoring[0] not in Spies.seen


def test_one_object_cannot_be_judge_and_oracle(tmp_path):
    cost = CountCost()
    with pytest.raises(InputError, match="same object"):
        run(tmp_path, "Halves", judge=cost, oracle=cost)


@pytest.mark.parametrize(
    ("solver", "status", "reason"),
    [
        ("GivesUp", "infeasible", "table 't3' fits nowhere"),
        ("Validates", "infeasible", "device 0 holds 640 bytes, 160 more than its 480"),
        ("Overfull", "infeasible", "device 0 holds 640 bytes, 160 more than its 480"),
        ("Crashes", "error", "KeyError: 'missing\\nthing'"),
        ("Exits", "error", "SystemExit: 3"),
        ("ReturnsNothing", "error", "the solver returned NoneType, not a ShardingPlan"),
        ("WrongTask", "error", "plan is for task"),
        ("Meddles", "error", "plan is for task"),
        ("CrashesUnprintably", "error", "Mute: its message cannot be printed"),
        ("HollowPlan", "error", "AttributeError: "),
    ],
)
def test_a_failure_is_a_record_with_a_reason_of_one_line(tmp_path, solver, status, reason):
    results = run(tmp_path, solver, "Halves")
    failed, fine = results[::2], results[1::2]
    assert {r.status for r in failed} == {status}
    assert all(r.reason.startswith(reason) and "\n" not in r.reason for r in failed)
    assert all(r.total_ms == float("inf") for r in failed)
    assert {r.status for r in fine} == {"ok"}


def test_tracebacks_go_to_a_log_file(tmp_path):
    run(tmp_path, "Crashes", limit=1)
    text = (tmp_path / "errors.log").read_text()
    assert "evaluation_toys:Crashes, task toys/0, seed 0" in text
    assert 'raise KeyError("missing\\nthing")' in text


def test_a_plan_that_the_judge_cannot_score_is_unmeasured(tmp_path):
    results = run(tmp_path, "Halves", judge=BrokenCost())
    assert [r.status for r in results] == ["ok", "unmeasured", "ok"]
    assert results[1].reason == "MeasurementError: the worker died"
    assert results[1].plan is not None


def test_a_run_that_fails_before_its_first_record_does_not_claim_the_folder(tmp_path, monkeypatch):
    """What it was about does not matter to the next run there: it left nothing to mix with."""
    with monkeypatch.context() as patch:
        patch.setattr(CountCost, "score", lambda *_: (_ for _ in ()).throw(InputError("no ids here")))
        with pytest.raises(InputError, match="no ids"):
            run(tmp_path, "Halves")
    assert not (tmp_path / "run.json").exists()
    assert {r.judge for r in run(tmp_path, "Halves", judge="roofline")} == {"roofline"}
    assert json.loads((tmp_path / "run.json").read_text())["judge"] == "roofline"


def test_a_solver_that_changes_the_current_folder_does_not_move_the_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(run("out", "Wanders", "Halves")) == 6
    assert len(read_records(tmp_path / "out" / "records.jsonl")) == 6
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("isolate", [True, False])
def test_an_interrupt_leaves_the_finished_tasks(tmp_path, isolate):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "Interrupted", "Halves", isolate=isolate)
    assert [(r.task_index, r.status) for r in read_records(tmp_path / "records.jsonl")] == [(0, "ok"), (0, "ok")]


def test_a_wrong_name_is_found_before_anything_is_solved_or_written(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean size_greedy"):
        evaluate(ToySuite(toy_tasks()), ["sise_greedy"], out=tmp_path / "x", judge=CountCost(), oracle="roofline")
    assert not (tmp_path / "x").exists()


def test_settings_that_records_cannot_hold_are_refused(tmp_path):
    odd = [SolverSpec(TOY + "Tuned", {"k": {1, 2}})]
    with pytest.raises(InputError, match="Tuned' are not JSON"):
        evaluate(ToySuite(toy_tasks()), odd, out=tmp_path, judge=CountCost(), oracle="roofline")


class Tabulated(Halves):
    """Has a default that is a set of numbers."""

    def __init__(self, table=frozenset(range(9999)), k=3):
        self.table = table


def test_defaults_that_records_cannot_hold_are_abbreviated(tmp_path):
    (result,) = evaluate(ToySuite(toy_tasks()), [Tabulated], out=tmp_path, judge="roofline", oracle="roofline", limit=1)
    assert result.resolved_settings == {"table": "frozenset({0, 1, 2, 3, 4, 5, ...})", "k": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "quick-v2"}, "suite: expected tasks with a name, got 'quick-v2'"),
        ({"solvers": [CountCost]}, "solvers[0]: expected a name, 'module:Class', a SolverSpec, or an object with"),
        ({"solvers": "random"}, "solvers: expected a list, got 'random': write ['random']"),
        ({"seeds": [0, -1]}, "seed: expected an integer >= 0, got -1"),
        ({"seeds": []}, "no seed was given: name at least one"),
        ({"limit": 0}, "limit: expected an integer >= 1, got 0"),
        ({"limit": 4}, "limit=4: suite 'toys' has 3 tasks; give at most 3"),
        ({"time_limit_s": -1.0}, "time_limit_s: expected a number of seconds above 0, got -1.0"),
        ({"timeout_s": 0}, "timeout_s: expected a number of seconds above 0, got 0"),
        ({"timeout_s": None}, "timeout_s: expected a number of seconds above 0, got None"),
    ],
)
def test_arguments_of_another_kind_are_named(tmp_path, arguments, message):
    usual = {"suite": ToySuite(toy_tasks()), "solvers": ["random"], "out": tmp_path / "x", "judge": CountCost()}
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        evaluate(**(usual | {"oracle": "roofline"} | arguments))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_the_time_limit_reaches_solvers_that_take_one(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(Spies, "solve", lambda self, task, cost, seed=0, time_limit_s=None: given.append(time_limit_s))
    run(tmp_path, "Spies", "Halves", limit=1, time_limit_s=2.5, isolate=False)
    assert given == [2.5]


def test_tasks_that_do_not_come_with_shardgym_are_kept_next_to_the_records(tmp_path):
    run(tmp_path / "toys", "Halves")
    assert {p.stem for p in (tmp_path / "toys" / "tasks").iterdir()} == {task.digest for task in toy_tasks()}
    run(tmp_path / "ours", "Halves", suite=load_suite("quick-v2"), limit=1)
    assert not (tmp_path / "ours" / "tasks").exists()


def test_other_tasks_cannot_use_the_name_of_a_suite_of_shardgym(tmp_path):
    with pytest.raises(InputError, match="give it another name"):
        run(tmp_path, "Halves", suite=ToySuite(toy_tasks(), name="quick-v2"))


def test_run_info_tells_what_the_folder_is_about(tmp_path):
    run(tmp_path, "Halves", limit=2)
    run(tmp_path, "Lopsided", limit=1, seeds=[3])
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["num_tasks"] == 2
    assert info["solvers"] == [TOY + "Halves", TOY + "Lopsided"]
    assert info["seeds"] == [0, 3]


def test_processor_time_is_recorded_and_older_records_have_none(tmp_path):
    (result,) = run(tmp_path, "Halves", limit=1)
    assert result.cpu_time_s >= 0
    old = {name: value for name, value in result.to_dict().items() if name != "cpu_time_s"}
    assert Result.from_dict(old).cpu_time_s is None
