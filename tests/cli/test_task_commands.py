"""solve, plan show, measure, check-solver; NAME,KEY=VALUE, and tasks by suite and index."""

import dataclasses
import json

import pytest

from shardgym import InputError, ShardingPlan, ShardingTask, StepMemory, Topology, load_suite, make_cost
from shardgym.cli import main
from shardgym.cli.common import parse_spec


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


def test_no_feasible_plan_is_exit_code_1_and_no_file(here, output_of):
    whys = {"GivesUp": "table 't3' fits nowhere", "Overfull": "device 0 holds 640 bytes, 160 more than its 480"}
    for solver, message in whys.items():
        said = output_of(["solve", "task.json", "--solver", f"evaluation_toys:{solver}", "-o", "plan.json"], 1)
        assert said.err.startswith(f"shardgym: error: {message}")
    assert sorted(path.name for path in here.iterdir()) == ["task.json"]


def test_tasks_of_suites_are_named_by_suite_and_index(here, capsys, output_of):
    assert main(["solve", "quick-v2/3", "--solver", "dim_greedy", "-o", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["oracle_cost"]["cost"] == "roofline"
    assert "suite 'quick-v2' has tasks 0 to 7, not 8" in output_of(["plan", "show", "quick-v2/8", "plan.json"], 2).err
    (here / "task.json").rename("quick-v2")  # a file with the name of a suite is a task
    assert main(["solve", "quick-v2", "-o", "other.json", "--solver", "random"]) == 0


def test_solve_says_what_the_solver_proves(capsys, output_of):
    name = "quick-v2/3", "--oracle", "roofline", "-o", "plan.json", "--force"
    page = json.loads(output_of(["solve", *name, "--solver", "milp", "--json"]).out)
    (found,) = make_cost("roofline").evaluate(load_suite("quick-v2")[3], [ShardingPlan.load("plan.json")])
    assert 0 < page["lower_bound_ms"] <= found.total_ms
    assert main(["solve", *name, "--solver", "milp"]) == 0
    bound = f"lower bound for plans of these kinds: {page['lower_bound_ms']:.3f} ms; this one is at most"
    assert bound in capsys.readouterr().out
    assert json.loads(output_of(["solve", *name, "--solver", "lpt", "--json"]).out)["lower_bound_ms"] is None


def test_plan_show_of_an_infeasible_plan_is_exit_code_1(here, capsys, output_of):
    plan = ShardingPlan.table_wise(ShardingTask.load("task.json"), [0, 0, 0, 0])
    (here / "plan.json").write_text(plan.to_json())
    assert main(["plan", "show", "task.json", "plan.json", "--cost", "roofline"]) == 1
    said = "cost: none from roofline, because of the problems below\nproblem: device 0 holds 640 bytes"
    assert said in capsys.readouterr().out
    data = json.loads(output_of(["plan", "show", "task.json", "plan.json", "--json"], 1).out)
    assert [device["used_bytes"] for device in data["devices"]] == [640, 0]
    assert len(data["problems"]) == 1


def test_plan_show_says_what_a_step_has_in_memory(here, capsys, output_of):
    toy = ShardingTask.load("task.json")
    memory = Topology(num_devices=2, memory_bytes=100_000)
    task = dataclasses.replace(toy, topology=memory, step_memory=StepMemory(reserved_bytes=1000))
    (here / "step.json").write_text(task.to_json())
    plan = ShardingPlan.table_wise(task, [0, 0, 0, 1])
    (here / "plan.json").write_text(plan.to_json())
    devices = json.loads(output_of(["plan", "show", "step.json", "plan.json", "--json"]).out)["devices"]
    assert [device["used_for"] for device in devices] == [held._asdict() for held in plan.memory_per_device(task)]
    assert all(device["used_bytes"] == sum(device["used_for"].values()) for device in devices)
    assert main(["plan", "show", "step.json", "plan.json"]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if "device" in line and "memory" in line)
    assert header.split()[2:8] == ["weights", "optimizer", "in", "flight", "reserved", "memory"]


@pytest.mark.measured
def test_measure_with_real_kernels(capsys, output_of):
    solve("plan.json")
    capsys.readouterr()
    (row,) = json.loads(output_of(["measure", "task.json", "plan.json", "--device", "cpu", "--json"]).out)
    assert row["total_ms"] > 0
    assert row["cost"]["compute"] == "measured"


def test_topologies_are_listed_with_default_links_where_they_name_none(output_of):
    links = {row["topology"]: row["links"] for row in json.loads(output_of(["list", "topologies", "--json"]).out)}
    assert (links["cpu"], links["dgx-h100"]) == ("ethernet", "nvlink4+ndr")


def test_values_are_json_where_they_can_be_read_as_such():
    assert parse_spec("simulator,weights=a/b.c,role=judge") == ("simulator", {"weights": "a/b.c", "role": "judge"})
    assert parse_spec("m:Class,n=3,x=0.5,on=true,off=False,none=null,text=\"3\"") == (
        "m:Class", {"n": 3, "x": 0.5, "on": True, "off": False, "none": None, "text": "3"},
    )  # fmt: skip
    assert parse_spec("random") == ("random", {})
    assert parse_spec("cost,key=a=b") == ("cost", {"key": "a=b"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a=1", "the name is missing"),
        ("cost,weights", "got 'weights' for a setting"),
        ("cost,a=1,", "got '' for a setting"),
        ("cost,a=1,a=2", "every key once, got 'a=2' for a setting"),
        ("cost,name=x", "got 'name=x' for a setting"),
    ],
)
def test_what_is_not_that_gets_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_spec(text)
    assert "\n" not in str(caught.value)


def test_check_solver_passes_settings_and_shows_them(capsys, output_of):
    page = json.loads(output_of(["check-solver", "neuroshard,beam_width=1,levels=0", "--json"]).out)
    assert (page["solver"], page["ok"]) == ("neuroshard,beam_width=1,levels=0", True)
    assert main(["check-solver", "neuroshard,beam_width=0"]) == 2
    assert "beam_width: expected an integer >= 1, got 0" in capsys.readouterr().err
    assert main(["check-solver", "evaluation_toys:Crashes"]) == 1


def test_a_device_is_given_once(here, capsys):
    (here / "plan.json").write_text('{"t0": 0, "t1": 1, "t2": 0, "t3": 1}')
    assert main(["measure", "task.json", "plan.json", "--cost", "fbgemm,device=cuda", "--device", "cpu"]) == 2
    assert "every key once, got 'device=cpu' for a setting" in capsys.readouterr().err
