"""Registered solvers refuse wrong arguments in one line that names them."""

import numpy as np
import pytest
from evaluation_toys import INSTALLED

from baselines.learning.policy_solver import PolicySolver
from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.costs.roofline import RooflineCost
from shardgym.evaluation.solver import check_solve_arguments, weights_that_ship
from shardgym.evaluation.solver_spec import SolverSpec, resolved_settings

TOPOLOGY = Topology(num_devices=2, memory_bytes=2**20)
TASK = ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 20, 4)), TOPOLOGY, batch_size=64)
PLAN = ShardingPlan.table_wise(TASK, [0, 1])
COST = make_cost("roofline")


@pytest.mark.parametrize("name", INSTALLED)
def test_every_solver_refuses_what_is_no_task_or_no_seed(name):
    for task in ("task.json", None, PLAN):
        with pytest.raises(InputError, match=r"^task: expected a ShardingTask, got"):
            make_solver(name).solve(task, COST)
    for seed in ("x", -1, 1.5, None, True, [1]):
        with pytest.raises(InputError, match=r"^seed: expected an integer >= 0, got "):
            make_solver(name).solve(TASK, COST, seed=seed)


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "measured_rerank"])  # it has {} for None
def test_an_object_is_recorded_with_the_arguments_it_was_made_with(name):
    made = make_solver(name)
    assert SolverSpec.of(made).settings == resolved_settings(type(made), {})


def test_arguments_that_are_no_defaults_are_recorded_and_unknown_ones_refused():
    given = [("neuroshard", {"beam_width": 7}), ("autoshard", {"updates": 2}), ("ppo_columns", {"episodes": 3})]
    for name, settings in given:
        made = SolverSpec.of(make_solver(name, **settings))
        assert made.settings == resolved_settings(type(made.given), settings)
    policy = PolicySolver(len, "ShardGym/TableWise-v0", observation="timed")
    assert SolverSpec.of(policy).settings["observation"] == "timed"
    with pytest.raises(InputError, match=r"^solver Hidden has no attribute 'rate', so records cannot say"):
        SolverSpec.of(Hidden())


class Hidden:
    def __init__(self, rate=0.1):
        self._rate = rate


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "measured_rerank"])  # it measures
def test_every_solver_takes_seeds_of_numpy(name):
    solver = make_solver(name)
    assert solver.solve(TASK, COST, seed=np.int64(3)) == solver.solve(TASK, COST, seed=3)


@pytest.mark.parametrize("name", ["neuroshard", "neuroshard_plus"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": RooflineCost}, "^cost: expected a CostModel, got "),
        ({"time_limit_s": "x"}, "^time_limit_s: expected a number of seconds, got 'x'$"),
        ({"initial_plan": "plan.json"}, "^initial_plan: expected a ShardingPlan, got str 'plan.json'"),
    ],
)
def test_searches_refuse_options_of_another_kind(name, arguments, message):
    with pytest.raises(InputError, match=message):
        make_solver(name).solve(TASK, **{"cost": COST} | arguments)


@pytest.mark.parametrize("seconds", [0, 2, 1.5, np.float32(1), float("inf"), -1.0])
def test_any_number_is_a_time_limit(seconds):
    check_solve_arguments(TASK, COST, 0, time_limit_s=seconds, initial_plan=PLAN)


def test_a_folder_with_the_name_of_a_package_hides_no_weights(tmp_path, monkeypatch):
    (tmp_path / "baselines").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert "dlrm4-v1" in weights_that_ship()["dreamshard"]
