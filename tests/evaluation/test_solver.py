"""Registered solvers refuse wrong arguments in one line that names them."""

import numpy as np
import pytest
from evaluation_toys import INSTALLED

from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.costs.roofline import RooflineCost
from shardgym.evaluation.solver import check_solve_arguments, weights_that_ship

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
