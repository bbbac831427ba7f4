"""The shipped simulators of modelled GPUs: oracles alone, near the model that judges, and never the default."""

from __future__ import annotations

import numpy as np
import pytest

from shardgym import InputError, load_suite, make_cost, make_solver
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.weights import SHIPPED


@pytest.mark.parametrize("hardware", ["h100", "a100"])
@pytest.mark.parametrize("suite", ["dlrm4-gpu-v1", "dlrm8-gpu-v1"])
def test_a_simulator_of_a_modelled_gpu_predicts_plans_of_its_suites(hardware, suite):
    oracle = make_cost("simulator", hardware=f"{hardware}-modelled")
    judge = make_cost("gpu", hardware=hardware)
    errors = []
    for task in load_suite(suite)[:4]:
        plans = [make_solver("random").solve(task, oracle, seed=seed) for seed in range(3)]
        costs = [[cost.total_ms for cost in model.evaluate(task, plans)] for model in (oracle, judge)]
        errors += list(np.abs(np.divide(*costs) - 1))
    assert np.median(errors) < 0.04
    assert max(errors) < 0.2


@pytest.mark.parametrize("hardware", ["h100", "a100"])
def test_the_model_judges_so_no_judge_ships(hardware):
    with pytest.raises(InputError, match="no weights"):
        make_cost("simulator", hardware=f"{hardware}-modelled", role="judge")
    card = ModelCard.load(SHIPPED / f"{hardware}-modelled" / "oracle.json")
    assert card.hardware == f"{hardware}-modelled"
    assert card.errors["compute"]["mape"] < 0.03


def test_without_a_name_the_simulator_is_that_of_the_measured_machine():
    assert make_cost("simulator").hardware == "cpu-amd-epyc-2c"
