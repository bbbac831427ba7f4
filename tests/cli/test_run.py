"""run, leaderboard: the main job from the command line, without measuring."""

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym.cli import main
from shardgym.leaderboard import BASE

ROOFLINE = ["--cost", "roofline", "--oracle", "roofline"]


@pytest.fixture
def toys(here):
    (here / "toys.json").write_text(json.dumps([task.to_dict() for task in toy_tasks()]))
    return "toys.json"


def test_run_prints_the_table_and_where_the_results_are(toys, tmp_path, capsys, output_of):
    solvers = ["--solver", "random", "--solver", "dim_greedy"]
    out = output_of(["run", "--suite", toys, *ROOFLINE, *solvers, "--limit", "2", "--seed", "3"]).out
    assert "toys: 2 tasks, judged by roofline" in out
    records = (tmp_path / "results/toys-roofline/records.jsonl").read_text().replace(" ", "").splitlines()
    assert all('"seed":3' in record for record in records)
    for solver in ("random", "dim_greedy", BASE):
        assert solver in out
    assert "records: results/toys-roofline/records.jsonl" in out
    assert "table: results/toys-roofline/table.md" in out
    assert main(["leaderboard", "results", "--format", "md"]) == 0
    assert capsys.readouterr().out == (tmp_path / "results/toys-roofline/table.md").read_text()


def test_a_solver_of_ones_own_is_found_from_the_current_folder(toys, tmp_path, capfd):
    (tmp_path / "own_solvers_of_mine.py").write_text(
        "from shardgym import ShardingPlan\n"
        "class Mine:\n"
        "    def solve(self, task, cost, seed=0):\n"
        "        print('not part of the result')\n"
        "        return ShardingPlan.table_wise(task, [i % task.num_devices for i in range(task.num_tables)])\n"
    )
    assert main(["run", "--suite", toys, *ROOFLINE, "--solver", "own_solvers_of_mine:Mine", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["rankings"][0]["rows"][0]["success"] == 1.0
    assert "not part of the result" in captured.err


def test_a_solver_that_raises_makes_exit_code_1_and_says_why(toys, output_of):
    solvers = ["--solver", "evaluation_toys:Crashes", "--solver", "dim_greedy"]
    captured = output_of(["run", "--suite", toys, *ROOFLINE, *solvers], 1)
    assert "evaluation_toys:Crashes on task 0, error: KeyError: 'missing\\nthing'" in captured.err
    assert "tracebacks: results/toys-roofline/errors.log" in captured.out


def test_a_task_without_a_feasible_plan_is_an_outcome(toys, output_of):
    solvers = ["--solver", "evaluation_toys:GivesUp", "--solver", "dim_greedy"]
    captured = output_of(["run", "--suite", toys, *ROOFLINE, *solvers])
    assert "Failed: 3 of 9 records, counted as the plan of lpt." in captured.out
    told = [line for line in captured.err.splitlines() if line.startswith("shardgym: evaluation_toys:GivesUp")]
    assert len(told) == 1
    assert "GivesUp on task 0, infeasible: " in told[0]
    assert told[0].endswith("; 2 more infeasible, see results/toys-roofline/records.jsonl")
    # Nothing was solved, though the base of tables solved all.
    assert main(["run", "--suite", toys, *ROOFLINE, *solvers[:2]]) == 1


def test_a_suite_names_the_solvers_that_run_by_default(toys, tmp_path, monkeypatch, output_of):
    command = ["run", "--suite", toys, *ROOFLINE, "--json"]
    tasks = [task.to_dict() for task in toy_tasks(1)]
    suite = {"description": "", "judge": "roofline", "oracle": "roofline", "tasks": {"kind": "listed", "tasks": tasks}}
    named = suite | {"solvers": ["random", "mine=evaluation_toys:Tuned,k=2"]}
    (tmp_path / "toys.json").write_text(json.dumps(named))
    (ranking,) = json.loads(output_of([*command, "--out", "named"]).out)["rankings"]
    assert {row["solver"] for row in ranking["rows"]} == {"random", "mine", BASE}
    assert "mine is evaluation_toys:Tuned with k=2." in ranking["footer"][2]
    (ranking,) = json.loads(output_of([*command, "--solver", "dim_greedy", "--out", "chosen"]).out)["rankings"]
    assert {row["solver"] for row in ranking["rows"]} == {"dim_greedy", BASE}
    (tmp_path / "toys.json").write_text(json.dumps(suite))
    monkeypatch.setattr("shardgym.cli.run.DEFAULT_SOLVERS", ("random", "size_greedy"))
    (ranking,) = json.loads(output_of([*command, "--out", "unnamed"]).out)["rankings"]
    assert {row["solver"] for row in ranking["rows"]} == {"random", "size_greedy", BASE}


def test_the_base_of_tables_runs_with_any_solvers_and_once(toys, output_of):
    judged = ["run", "--suite", toys, *ROOFLINE, "--json", "--solver", "random"]
    for out, solvers in (("added", []), ("named", ["--solver", BASE])):
        (ranking,) = json.loads(output_of([*judged, *solvers, "--out", out]).out)["rankings"]
        assert sorted(row["solver"] for row in ranking["rows"]) == sorted(["random", BASE])
        assert ranking["base"] == BASE
