"""What a report says, and what check_solver refuses."""

import json

import pytest

from shardgym.costs import make_cost
from shardgym.costs.roofline import RooflineCost
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.conformance import Check, ConformanceReport, check_solver
from shardgym.evaluation.conformance.calls import feasible_cases, infeasible_cases, long_case


class Noisy(RooflineCost):
    deterministic = False


def report(*verdicts):
    return ConformanceReport("s", "c", tuple(Check(f"check{i}", ok, "why") for i, ok in enumerate(verdicts)))


@pytest.mark.parametrize(("verdicts", "ok"), [((True, True), True), ((True, False), False), ((True, None), False)])
def test_a_report_is_ok_when_every_check_ran_and_held(verdicts, ok):
    assert report(*verdicts).ok is ok


def test_the_table_has_a_line_per_check_with_its_result():
    lines = report(True, False, None).table().splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["check0", "ok"], ["check1", "FAILED"], ["check2", "not"]]


def test_the_report_as_json_names_solver_cost_and_checks():
    data = json.loads(json.dumps(check_solver("size_greedy").to_dict()))
    assert (data["solver"], data["cost"], data["ok"]) == ("size_greedy", "roofline", True)
    assert {check["name"] for check in data["checks"]} >= {"memory_respected", "time_limit_kept"}


def test_unknown_solvers_and_unsuitable_settings_are_input_errors():
    with pytest.raises(UnknownNameError, match="did you mean"):
        check_solver("size_gredy")
    with pytest.raises(InputError, match="has no setting"):
        check_solver("size_greedy", settings={"beam": 3})
    with pytest.raises(InputError, match="ready-made solver"):
        check_solver(object(), settings={"beam": 3})


def test_a_cost_that_is_not_deterministic_is_refused():
    with pytest.raises(InputError, match="not deterministic"):
        check_solver("random", Noisy())


def test_the_solver_may_query_the_cost_it_is_given():
    asked = []

    class Recorder(RooflineCost):
        name = "recorder"

        def evaluate(self, task, plans):
            asked.append(len(plans))
            return super().evaluate(task, plans)

    class Asks:
        def solve(self, task, cost, seed=0):
            from baselines.greedy import SizeGreedy

            plan = SizeGreedy().solve(task, cost)
            cost.evaluate(task, [plan])
            return plan

    assert check_solver(Asks, Recorder()).cost == "recorder"
    assert asked


def test_cases_are_what_they_claim():
    from baselines.greedy import LookupGreedy

    cost = make_cost("roofline")
    for case in [*feasible_cases(), long_case()]:
        assert cost.evaluate(case.task, [LookupGreedy().solve(case.task, cost)])[0].feasible, case.name
    for case in infeasible_cases():
        short = case.task.total_bytes > case.task.topology.total_memory_bytes
        assert short or any(table.embedding_dim % 4 for table in case.task.tables), case.name
