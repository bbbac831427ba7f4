"""task make, solve, plan show, plan diff, measure, check-solver, pool check, doctor."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym import ShardingPlan, ShardingTask
from shardgym.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder with a task file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    return tmp_path


def solve(output, solver="dim_greedy", *more):
    return main(["solve", "task.json", "--solver", solver, "-o", output, *more])


def test_own_tables_become_a_task(here, capsys):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,2\nitem,50,8,1\n")
    command = ["task", "make", "--tables", "tables.csv", "--devices", "2", "--memory-gib", "0.001"]
    assert main([*command, "--batch-size", "64", "-o", "own.json"]) == 0
    task = ShardingTask.load("own.json")
    assert [table.name for table in task.tables] == ["user", "item"]
    assert task.topology.memory_bytes == (1073741, 1073741)
    assert (task.batch_size, task.name) == (64, "tables")
    assert "own.json: 2 tables, 3.1 % of the memory of 2 devices" in capsys.readouterr().out


def test_a_preset_names_the_machine(here):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim\nuser,1000,16\n")
    command = ["task", "make", "--tables", "tables.csv", "--devices", "16", "--preset", "dgx-a100"]
    assert main([*command, "--batch-size", "64", "-o", "own.json", "--json"]) == 0
    topology = ShardingTask.load("own.json").topology
    assert (topology.device, topology.fast_domain_size) == ("a100", 8)


def test_tables_that_no_plan_can_fit_make_no_task(here, capsys):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim\nuser,1000000,16\n")
    command = ["task", "make", "--tables", "tables.csv", "--devices", "2", "--memory-gib", "0.001"]
    assert main([*command, "--batch-size", "64", "-o", "own.json"]) == 2
    error = capsys.readouterr().err
    assert "the tables take 64000000 bytes (61.0 MiB) with optimiser state, 2 devices hold 2147482 bytes (" in error
    assert not (here / "own.json").exists()


@pytest.mark.parametrize("devices", ["99999999", "999999999999"])
def test_more_devices_than_there_can_be_are_refused_at_once(here, capsys, devices):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim\nuser,1000,16\n")
    command = ["task", "make", "--tables", "tables.csv", "--devices", devices, "--batch-size", "64", "-o", "own.json"]
    assert main(command) == 2
    assert capsys.readouterr().err == f"shardgym: error: num_devices: expected at most 65536, got {devices}\n"


def test_a_width_that_no_kernel_takes_is_warned_of(here, capsys):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim\nuser,1000,10\n")
    command = ["task", "make", "--tables", "tables.csv", "--devices", "1", "--batch-size", "64", "-o", "own.json"]
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("own.json: 1 table, 0.0 % of the memory of 1 device\n")
    warning = "shardgym: warning: table 'user' has 10 columns: FBGEMM needs multiples of 4, no plan will be feasible\n"
    assert captured.err == warning


def test_solve_writes_a_plan_that_is_valid(capsys):
    assert solve("plan.json") == 0
    ShardingPlan.load("plan.json").validate(ShardingTask.load("task.json"))
    assert capsys.readouterr().out.startswith("plan.json: 4 shards on 2 devices in ")


def test_solve_does_not_overwrite_without_force(here, capsys):
    (here / "plan.json").write_text("precious")
    assert solve("plan.json") == 2
    assert "plan.json exists: give another name, or --force" in capsys.readouterr().err
    assert (here / "plan.json").read_text() == "precious"
    assert solve("plan.json", "dim_greedy", "--force") == 0
    ShardingPlan.load("plan.json")


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        ("evaluation_toys:GivesUp", "table 't3' fits nowhere"),
        ("evaluation_toys:Overfull", "device 0 holds 640 bytes, 160 more than its 480"),
    ],
)
def test_no_feasible_plan_is_exit_code_1_and_no_file(here, capsys, solver, message):
    assert solve("plan.json", solver) == 1
    assert capsys.readouterr().err.startswith(f"shardgym: error: {message}")
    assert sorted(path.name for path in here.iterdir()) == ["task.json"]


def test_tasks_of_suites_are_named_by_suite_and_index(capsys):
    assert main(["solve", "quick-v1/3", "--solver", "dim_greedy", "-o", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["oracle_cost"]["cost"] == "roofline"
    assert main(["plan", "show", "quick-v1/3", "plan.json"]) == 0
    assert main(["plan", "show", "quick-v1/10", "plan.json"]) == 2
    assert "suite 'quick-v1' has tasks 0 to 9, not 10" in capsys.readouterr().err


def test_plan_show_draws_devices_memory_and_cost(capsys):
    solve("plan.json")
    capsys.readouterr()
    assert main(["plan", "show", "task.json", "plan.json", "--cost", "evaluation_toys:CountCost"]) == 0
    text = capsys.readouterr().out
    assert "slowest: device 0, 2.000 ms" in text
    assert "█" in text


def test_plan_show_of_an_infeasible_plan_is_exit_code_1(here, capsys):
    plan = ShardingPlan.table_wise(ShardingTask.load("task.json"), [0, 0, 0, 0])
    (here / "plan.json").write_text(plan.to_json())
    assert main(["plan", "show", "task.json", "plan.json", "--cost", "roofline"]) == 1
    said = "cost: none by roofline, because of the following\nproblem: device 0 holds 640 bytes"
    assert said in capsys.readouterr().out
    assert main(["plan", "show", "task.json", "plan.json"]) == 1
    assert "cost: " not in capsys.readouterr().out
    assert main(["plan", "show", "task.json", "plan.json", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [device["used_bytes"] for device in data["devices"]] == [640, 0]
    assert len(data["problems"]) == 1


def test_plan_diff_tells_what_moved(capsys):
    solve("a.json", "evaluation_toys:Halves")
    solve("b.json", "evaluation_toys:Lopsided")
    capsys.readouterr()
    assert main(["plan", "diff", "task.json", "a.json", "b.json", "--cost", "evaluation_toys:CountCost"]) == 0
    text = capsys.readouterr().out
    assert "moved 't2': device 1 → 0" in text
    assert "B against A: +50.0 %" in text
    assert main(["plan", "diff", "task.json", "a.json", "b.json", "--json"]) == 0
    assert [change["table"] for change in json.loads(capsys.readouterr().out)["changes"]] == ["t2"]


def test_measure_scores_several_plans_in_one_call(here, capsys):
    solve("a.json", "evaluation_toys:Halves")
    solve("b.json", "evaluation_toys:Lopsided")
    capsys.readouterr()
    command = ["measure", "task.json", "a.json", "b.json", "--cost", "evaluation_toys:CountCost"]
    assert main([*command, "--json"]) == 0
    assert [row["total_ms"] for row in json.loads(capsys.readouterr().out)] == [2.0, 3.0]
    assert main(command) == 0
    assert "slowest: device 0, 3.000 ms" in capsys.readouterr().out


def test_measure_of_an_infeasible_plan_is_exit_code_1(here, capsys):
    plan = ShardingPlan.table_wise(ShardingTask.load("task.json"), [0, 0, 0, 0])
    (here / "plan.json").write_text(plan.to_json())
    assert main(["measure", "task.json", "plan.json", "--cost", "roofline"]) == 1
    assert "problem: device 0 holds 640 bytes" in capsys.readouterr().out


def test_device_is_refused_by_a_cost_that_does_not_measure(capsys):
    solve("plan.json")
    assert main(["measure", "task.json", "plan.json", "--cost", "roofline", "--device", "cpu"]) == 2
    assert "cost 'roofline' has no setting" in capsys.readouterr().err


@pytest.mark.measured
def test_measure_with_real_kernels(capsys):
    solve("plan.json")
    capsys.readouterr()
    assert main(["measure", "task.json", "plan.json", "--device", "cpu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["total_ms"] > 0
    assert row["cost"]["compute"] == "measured"


def test_check_solver_passes_and_fails(capsys):
    assert main(["check-solver", "dim_greedy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert main(["check-solver", "evaluation_toys:Crashes"]) == 1


def test_pool_check_refuses_a_part_of_a_pool(here, capsys):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim\nuser,1000,16\n")
    assert main(["pool", "check", "tables.csv"]) == 2
    assert "of 788 or 856 tables with published totals, got 1:" in capsys.readouterr().err


def test_pool_check_prints_both_columns(capsys, monkeypatch):
    from shardgym.cli import checks
    from shardgym.pools.statistics import StatisticCheck

    for measured, code in ((101.0, 0), (110.0, 1)):
        outcome = [StatisticCheck("ids", 100.0, measured, 1.0)]
        monkeypatch.setattr(checks, "check_pool", lambda tables, seed, progress, o=outcome: o)
        assert main(["pool", "check"]) == code
        assert f"{measured:.4f}" in capsys.readouterr().out
        assert main(["pool", "check", "--json"]) == code
        row = {"name": "ids", "published": 100.0, "measured": measured, "tolerance": 1.0, "ok": code == 0}
        assert json.loads(capsys.readouterr().out) == {"ok": code == 0, "rows": [row]}


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("torch and FBGEMM do not load: no torch", 1)])
def test_doctor_reports_and_sets_the_exit_code(capsys, monkeypatch, problem, code):
    monkeypatch.setattr("shardgym.doctor._run_probe", lambda: {"problem": problem})
    assert main(["doctor", "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["problem"]) == (code == 0, problem)
    assert data["cores"] >= 1


@pytest.mark.measured
def test_doctor_says_that_a_machine_with_fbgemm_measures(capsys):
    assert main(["doctor"]) == 0
    assert "measure compute: yes, on cpu" in capsys.readouterr().out
