"""The files to copy from `examples/recipes` do what their first lines say."""

import math
import sys
from pathlib import Path

import gymnasium
import pytest

import shardgym
from shardgym.cli import main

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


@pytest.fixture(autouse=True)
def in_the_folder_of_recipes(monkeypatch):
    """A user stands beside the copied file."""
    monkeypatch.chdir(RECIPES)
    monkeypatch.syspath_prepend(str(RECIPES))
    for name in ("solver", "cost", "environment"):
        sys.modules.pop(name, None)


def test_the_solver_passes_check_solver_and_beats_random():
    task = shardgym.load_suite("quick-v2")[0]
    cost = shardgym.make_cost("roofline")
    solvers = [shardgym.make_solver(name) for name in ("solver:LongestProcessingTime", "random")]
    plans = [solver.solve(task, cost) for solver in solvers]
    ours, at_random = cost.evaluate(task, plans)
    assert ours.total_ms < at_random.total_ms
    assert main(["check-solver", "solver:LongestProcessingTime"]) == 0


def test_the_cost_is_what_its_formula_says(toy_task):
    cost = shardgym.make_cost("cost:BytesOverBandwidth", memory_bandwidth=1e6, link_bandwidth=1e6)
    plan = shardgym.ShardingPlan.table_wise(toy_task, {"wide": 0, "square": 1, "tall": 1})
    # "wide" has 16 columns, pooling factor 2, batch 4: it gathers 512 bytes and sends 256, a thousandth of a ms each.
    assert cost.evaluate(toy_task, [plan])[0].per_device[0].tolist() == pytest.approx([0, 0.512, 0.256, 0.256, 1.024])
    assert cost.settings() == {"memory_bandwidth": 1e6, "link_bandwidth": 1e6}


def test_the_environment_pays_the_logarithm(toy_task):
    import environment  # noqa: F401

    env = gymnasium.make("mine/LogReward-v0", tasks=[toy_task], cost="roofline")
    env.reset(seed=0)
    rewards = []
    terminated = False
    while not terminated:
        action = int(env.get_wrapper_attr("action_masks")().argmax())
        _, reward, terminated, _, info = env.step(action)
        rewards.append(reward)
    assert rewards[:-1] == [0.0, 0.0]
    assert rewards[-1] == pytest.approx(-math.log(info["cost"].total_ms))


def test_the_suite_runs(tmp_path, capsys):
    assert len(shardgym.load_suite("suite.yaml")) == 4
    arguments = ["run", "--suite", "suite.yaml", "--cost", "roofline", "--solver", "dim_greedy", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "dim_greedy" in capsys.readouterr().out
