"""measure: notes of costs, and no plan is best that another cannot be told from."""

import json
from dataclasses import replace

import pytest
from evaluation_toys import DriftingCost, toy_tasks

from shardgym import ShardingPlan
from shardgym.cli import main
from shardgym.cli.plans import TIE_RULE

COST = ["--cost", "test_measure:NotedCost"]
DRIFTING = ["--cost", "evaluation_toys:DriftingCost"]
SHARED, LOPSIDED = "note: devices shared cores", "note: lopsided plans are seldom good"


class NotedCost(DriftingCost):
    """Has one note for all plans, and one for plans with three tables on device 0."""

    name = "test_measure:NotedCost"

    def _cost(self, task, plan):
        lopsided = ("lopsided plans are seldom good",) if len(plan.on(0)) == 3 else ()
        return replace(super()._cost(task, plan), notes=("devices shared cores", *lopsided))


@pytest.fixture(autouse=True)
def plans(here):
    """Two plans of 2 ms, one of 3 ms with a note of its own, and one that does not fit.

    A cost of DriftingCost has a standard error of 1 %.
    """
    devices_of = {"even": [0, 0, 1, 1], "mirror": [1, 1, 0, 0], "uneven": [0, 0, 0, 1], "full": [0, 0, 0, 0]}
    for name, devices in devices_of.items():
        (here / f"{name}.json").write_text(ShardingPlan.table_wise(toy_tasks(1)[0], devices).to_json())


SOLVE = ["solve", "task.json", "--solver", "evaluation_toys:Lopsided", "-o", "plan.json", "--oracle", COST[1]]


@pytest.mark.parametrize(
    ("command", "notes"),
    [
        (SOLVE, [SHARED, LOPSIDED]),
        (["plan", "show", "task.json", "uneven.json", *COST], [SHARED, LOPSIDED]),
        (["plan", "show", "task.json", "uneven.json"], []),
        (["plan", "diff", "task.json", "even.json", "uneven.json", *COST], [SHARED, f"{LOPSIDED} (B)"]),
        (["measure", "task.json", "even.json", "uneven.json", *COST], [SHARED, f"{LOPSIDED} (uneven.json)"]),
        (["measure", "task.json", "even.json", *COST], [SHARED]),
        (["plan", "show", "task.json", "even.json", *COST, "--json"], []),
    ],
)
def test_notes_of_a_cost_are_printed_once_and_say_which_plans_they_are_for(output_of, command, notes):
    captured = output_of(command)
    assert [line for line in captured.out.splitlines() if line.startswith("note: ")] == notes
    assert captured.err == ""
    if "--json" in command:
        assert json.loads(captured.out)["cost"]["notes"] == ["devices shared cores"]


def test_measure_heads_every_page_by_its_file_and_ends_with_a_table(output_of):
    lines = output_of(["measure", "task.json", "even.json", "uneven.json", "full.json", *COST], 1).out.splitlines()
    for name in ("even.json", "uneven.json", "full.json"):
        assert lines[lines.index(f"{name}:") + 1].startswith("plan ")
    start = next(i for i, line in enumerate(lines) if line.startswith("file "))
    assert lines[start].split() == ["file", "total", "ms", "+-", "std", "error"]
    assert [line.split() for line in lines[start + 2 : start + 5]] == [
        ["even.json", "2.000", "0.020", "best"],
        ["uneven.json", "3.000", "0.030"],
        ["full.json", "-", "-", "no", "cost"],
    ]


def measured(capsys, *plans):
    assert main(["measure", "task.json", *plans, *DRIFTING]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("file "))
    return [line.split()[3:] for line in lines[start + 2 : start + 2 + len(plans)]], lines[start + 2 + len(plans) :]


def test_a_tie_has_no_best(capsys):
    marks, rest = measured(capsys, "even.json", "uneven.json", "mirror.json")
    assert marks == [["tied"], [], ["tied"]]
    assert rest[0] == TIE_RULE
    assert "at most 2 standard errors" in TIE_RULE
    assert main(["measure", "task.json", "even.json", "uneven.json", *DRIFTING, "--json"]) == 0
    assert [row["mark"] for row in json.loads(capsys.readouterr().out)] == ["best", None]
