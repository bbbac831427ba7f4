"""Simulators trained on kernels alone: compute is predicted, exchanges are latency and bytes over bandwidth."""

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.cli import main
from shardgym.costs.links import exchange_times, pooled_widths, transfer_ms
from shardgym.costs.shard_keys import PlanBatch
from shardgym.costs.simulator.model_card import ModelCard

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


def task(num_devices=4, **topology):
    rng = np.random.default_rng(1)
    tables = tuple(EmbeddingTable(f"t{n}", 1000 * (n + 1), int(8 * rng.integers(1, 5)), 4.0) for n in range(9))
    return ShardingTask(tables, Topology(num_devices=num_devices, memory_bytes=2**30, **topology), batch_size=512)


def plans(of_task, count=5):
    rng = np.random.default_rng(0)
    return [
        ShardingPlan.table_wise(of_task, rng.integers(0, of_task.num_devices, of_task.num_tables).tolist())
        for _ in range(count)
    ]


@pytest.mark.parametrize("role", ["oracle", "judge"])
def test_exchanges_are_those_of_the_links_and_ids_are_hidden(compute_model, role):
    cost, problem = make_cost("simulator", weights=compute_model, role=role), task(fast_domain_size=2)
    for plan, found in zip(plans(problem), cost.evaluate(problem, plans(problem)), strict=True):
        assert (found.compute, found.communication) == ("predicted", "modelled")
        transfer = transfer_ms(problem.topology, pooled_widths(problem, plan), problem.batch_size, 4)
        expected = exchange_times(found.per_device[:, [1, 4]], transfer, ids_hidden=True)
        np.testing.assert_allclose(found.per_device[:, 2], expected.forward_ms, rtol=1e-12)
        np.testing.assert_allclose(found.per_device[:, 3], expected.backward_ms, rtol=1e-12)
        assert not found.per_device[:, 0].any()


def test_many_tasks_in_one_call_have_the_links_of_their_own(compute_model):
    cost = make_cost("simulator", weights=compute_model)
    predictor, tasks = cost.predictor(), [task(), task(intra_bandwidth=1e7), task(fast_domain_size=2), task()]
    ours = [plans(problem, 1)[0] for problem in tasks]
    batch = PlanBatch(
        4, np.full(4, 9), np.concatenate([predictor.encode(t, p.shards) for t, p in zip(tasks, ours, strict=True)]),
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
