"""Simulators trained on kernels alone: compute is predicted, exchanges are latency and bytes over bandwidth."""

import dataclasses

import numpy as np
import pytest

from shardgym import make_cost
from shardgym.cli import main
from shardgym.costs.links import exchange_times, pooled_widths, transfer_ms
from shardgym.costs.shard_keys import PlanBatch
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.plans.migration import rebound

pytest.importorskip("pyarrow", reason="needs the extra 'data'")


@pytest.fixture(scope="module")
def compute_data(made_up_rows, write_samples, tmp_path_factory):
    return write_samples(tmp_path_factory.mktemp("compute-samples"), {"compute": made_up_rows["compute"]})


@pytest.fixture(scope="module")
def compute_model(compute_data, tmp_path_factory):
    from shardgym.training.data import load_data
    from shardgym.training.fitting import FitSettings
    from shardgym.training.pretrain import pretrain

    folder = tmp_path_factory.mktemp("compute-model")
    pretrain(load_data(compute_data), folder, FitSettings(epochs=2, least_steps=0, members=1), seed=5)
    return folder


@pytest.mark.parametrize("role", ["oracle", "judge"])
def test_exchanges_are_those_of_the_links_and_ids_are_hidden(compute_model, role, task, plans):
    cost = make_cost("simulator", weights=compute_model, role=role)
    for plan, found in zip(plans, cost.evaluate(task, plans), strict=True):
        assert (found.compute, found.communication) == ("predicted", "modelled")
        transfer = transfer_ms(task.topology, pooled_widths(task, plan), task.batch_size, 4)
        expected = exchange_times(found.per_device[:, [1, 4]], transfer, ids_hidden=True)
        np.testing.assert_allclose(found.per_device[:, 2], expected.forward_ms, rtol=1e-12)
        np.testing.assert_allclose(found.per_device[:, 3], expected.backward_ms, rtol=1e-12)
        assert not found.per_device[:, 0].any()


def test_many_tasks_in_one_call_have_the_links_of_their_own(compute_model, task, plans):
    cost = make_cost("simulator", weights=compute_model)
    predictor = cost.predictor()
    links = [{}, {"intra_bandwidth": 1e7}, {"fast_domain_size": 2}, {}]
    tasks = [dataclasses.replace(task, topology=dataclasses.replace(task.topology, **of)) for of in links]
    ours = [rebound(plan, of) for plan, of in zip(plans, tasks, strict=False)]
    batch = PlanBatch(
        3, np.full(4, 12), np.concatenate([predictor.encode(t, p.shards) for t, p in zip(tasks, ours, strict=True)]),
        np.array([shard.devices[0] for plan in ours for shard in plan.shards]),
    )  # fmt: skip
    for problem, plan, found in zip(tasks, ours, predictor.plan_costs(batch), strict=True):
        np.testing.assert_allclose(found.per_device, cost.evaluate(problem, [plan])[0].per_device, rtol=1e-9)
        assert found.communication == "modelled"


def test_the_command_trains_on_shard_sets_alone_and_says_so(compute_data, tmp_path, capsys):
    assert main(["pretrain", str(compute_data), "-o", str(tmp_path / "m"), "--epochs", "1"]) == 0
    printed = capsys.readouterr()
    assert "has no complete steps: the simulator will predict kernels alone, and model exchanges" in printed.err
    assert "step" not in printed.out
    assert make_cost("simulator", weights=tmp_path / "m", role="judge").version
    card = ModelCard.load(tmp_path / "m" / "oracle.json")
    assert set(card.errors) == {"forward_compute", "backward_compute", "compute"}
    assert (card.samples["steps"], card.samples["test steps"]) == (0, 0)
