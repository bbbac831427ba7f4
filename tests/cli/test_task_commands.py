"""solve, plan show, measure, check-solver."""

import dataclasses
import json

import pytest

from shardgym import ShardingPlan, ShardingTask, StepMemory, Topology, load_suite, make_cost
from shardgym.cli import main


def solve(output, solver="dim_greedy", *more):
    return main(["solve", "task.json", "--solver", solver, "-o", output, *more])


def test_solve_writes_a_valid_plan_and_overwrites_with_force_alone(here, capsys):
    (here / "plan.json").write_text("precious")
    assert solve("plan.json") == 2
    assert "plan.json exists: give another name, or --force" in capsys.readouterr().err
    assert (here / "plan.json").read_text() == "precious"
    assert solve("plan.json", "dim_greedy", "--force") == 0
    ShardingPlan.load("plan.json").validate(ShardingTask.load("task.json"))
    assert capsys.readouterr().out.startswith("plan.json: 4 shards on 2 devices in ")


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
    assert main(["solve", "quick-v2/3", "--solver", "dim_greedy", "-o", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["oracle_cost"]["cost"] == "roofline"
    assert main(["plan", "show", "quick-v2/8", "plan.json"]) == 2
    assert "suite 'quick-v2' has tasks 0 to 7, not 8" in capsys.readouterr().err


def test_solve_says_what_the_solver_proves(capsys):
    name = "quick-v2/3", "--oracle", "roofline", "-o", "plan.json", "--force"
    assert main(["solve", *name, "--solver", "milp", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    (found,) = make_cost("roofline").evaluate(load_suite("quick-v2")[3], [ShardingPlan.load("plan.json")])
    assert 0 < page["lower_bound_ms"] <= found.total_ms
    assert main(["solve", *name, "--solver", "milp"]) == 0
    bound = f"lower bound of plans of these kinds: {page['lower_bound_ms']:.3f} ms; this one is at most"
    assert bound in capsys.readouterr().out
    assert main(["solve", *name, "--solver", "lpt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lower_bound_ms"] is None


def test_plan_show_of_an_infeasible_plan_is_exit_code_1(here, capsys):
    plan = ShardingPlan.table_wise(ShardingTask.load("task.json"), [0, 0, 0, 0])
    (here / "plan.json").write_text(plan.to_json())
    assert main(["plan", "show", "task.json", "plan.json", "--cost", "roofline"]) == 1
    said = "cost: none by roofline, because of the following\nproblem: device 0 holds 640 bytes"
    assert said in capsys.readouterr().out
    assert main(["plan", "show", "task.json", "plan.json", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [device["used_bytes"] for device in data["devices"]] == [640, 0]
    assert len(data["problems"]) == 1


def test_plan_show_says_what_a_step_has_in_memory(here, capsys):
    toy = ShardingTask.load("task.json")
    memory = Topology(num_devices=2, memory_bytes=100_000)
    task = dataclasses.replace(toy, topology=memory, step_memory=StepMemory(reserved_bytes=1000))
    (here / "step.json").write_text(task.to_json())
    plan = ShardingPlan.table_wise(task, [0, 0, 0, 1])
    (here / "plan.json").write_text(plan.to_json())
    assert main(["plan", "show", "step.json", "plan.json", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert [device["used_for"] for device in devices] == [held._asdict() for held in plan.memory_per_device(task)]
    assert all(device["used_bytes"] == sum(device["used_for"].values()) for device in devices)
    assert main(["plan", "show", "step.json", "plan.json"]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if "device" in line and "memory" in line)
    assert header.split()[2:8] == ["weights", "optimizer", "in", "flight", "reserved", "memory"]


@pytest.mark.measured
def test_measure_with_real_kernels(capsys):
    solve("plan.json")
    capsys.readouterr()
    assert main(["measure", "task.json", "plan.json", "--device", "cpu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["total_ms"] > 0
    assert row["cost"]["compute"] == "measured"


def test_topologies_are_listed_with_default_links_where_they_name_none(capsys):
    assert main(["list", "topologies", "--json"]) == 0
    links = {row["topology"]: row["links"] for row in json.loads(capsys.readouterr().out)}
    assert (links["cpu"], links["dgx-h100"]) == ("ethernet", "nvlink4+ndr")
