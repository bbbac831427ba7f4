"""Simulators of machines that cannot measure exchanges: compute is predicted, communication modelled."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.cli import main
from shardgym.costs.additive import PlanBatch
from shardgym.costs.link_model import LinkModel
from shardgym.costs.links import exchange_times, pooled_widths
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.weights import load_weights, save_weights
from shardgym.errors import InputError

pytest.importorskip("pyarrow", reason="needs the extra 'data'")


@pytest.fixture(scope="module")
def compute_data(made_up_rows, tmp_path_factory):
    from shardgym.costs.simulator.sample_files import DataInfo, write_rows

    folder = tmp_path_factory.mktemp("compute-samples")
    info = DataInfo("compute", "made-up", {"shardgym": "test"}, {"made": "up"}, "2026-01-01T00:00:00+00:00")
    write_rows(folder / "compute.parquet", made_up_rows["compute"], info)
    return folder


@pytest.fixture(scope="module")
def compute_model(compute_data, quick_settings, tmp_path_factory):
    from shardgym.pretraining.data import load_data
    from shardgym.pretraining.pretrain import pretrain

    folder = tmp_path_factory.mktemp("compute-model")
    pretrain(load_data(compute_data), folder, quick_settings, seed=5)
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
def test_compute_is_that_of_a_whole_simulator_and_communication_that_of_the_links(model, compute_model, role):
    whole, alone = (make_cost("simulator", weights=folder, role=role) for folder in (model, compute_model))
    problem = task(fast_domain_size=2)
    assert not alone.predicts_exchanges
    for plan, ours, theirs in zip(
        plans(problem), alone.evaluate(problem, plans(problem)), whole.evaluate(problem, plans(problem)), strict=True
    ):
        assert (ours.compute, ours.communication, theirs.communication) == ("predicted", "modelled", "predicted")
        noted = [any("play no part" in note for note in cost.notes) for cost in (ours, theirs)]
        assert noted == [False, True]
        np.testing.assert_array_equal(ours.per_device[:, [1, 4]], theirs.per_device[:, [1, 4]])
        forward, backward, _ = exchange_times(
            problem, ours.per_device[:, [1, 4]].sum(axis=1), pooled_widths(problem, plan)
        )
        np.testing.assert_allclose(ours.per_device[:, 2], forward, rtol=1e-12)
        np.testing.assert_allclose(ours.per_device[:, 3], backward, rtol=1e-12)


def test_a_link_model_of_the_hardware_prices_exchanges(
    compute_data, compute_model, quick_settings, monkeypatch, tmp_path
):
    """Weights keep it, so that predictions do not depend on which models ship later."""
    from shardgym.pretraining.data import load_data
    from shardgym.pretraining.pretrain import pretrain

    links = LinkModel(0.5, 0.25, 2.0, 1.0, "made-up", 0.0, 1)
    with monkeypatch.context() as patch:
        patch.setattr("shardgym.pretraining.pretrain.model_fitted_on", {"made-up": links}.get)
        pretrain(load_data(compute_data), tmp_path, dataclasses.replace(quick_settings, epochs=1), seed=5)
    assert load_weights(compute_model / "oracle.safetensors", "oracle").links is None
    problem = task(fast_domain_size=2)
    for role in ("oracle", "judge"):
        cost = make_cost("simulator", weights=tmp_path, role=role)
        for plan, found in zip(plans(problem), cost.evaluate(problem, plans(problem)), strict=True):
            compute_ms = found.per_device[:, [1, 4]].sum(axis=1)
            expected = links.exchange_times(problem, compute_ms, pooled_widths(problem, plan))
            np.testing.assert_allclose(found.per_device[:, 2], expected.forward_ms, rtol=1e-9)
            np.testing.assert_allclose(found.per_device[:, 3], expected.backward_ms, rtol=1e-9)
            assert found.communication == "modelled"


def test_large_start_offsets_are_no_reason_for_doubt(compute_model):
    """There is no network of exchanges that could be far from its training data."""
    cost, problem = make_cost("simulator", weights=compute_model), task(intra_bandwidth=1e5)
    (near,) = cost.familiarity(problem, plans(problem, 1))
    assert not {"start offset", "devices", "bytes per device"} & set(near.outside)


def test_many_tasks_in_one_call_have_the_links_of_their_own(compute_model):
    cost = make_cost("simulator", weights=compute_model)
    predictor, tasks = cost.predictor(), [task(), task(intra_bandwidth=1e7), task(fast_domain_size=2), task()]
    ours = [plans(problem, 1)[0] for problem in tasks]
    batch = PlanBatch(
        4, np.full(4, 9), np.concatenate([predictor.encode(t, p.shards) for t, p in zip(tasks, ours, strict=True)]),
        np.array([shard.device for plan in ours for shard in plan.shards]),
    )  # fmt: skip
    for problem, plan, found in zip(tasks, ours, predictor.plan_costs(batch), strict=True):
        np.testing.assert_allclose(found.per_device, cost.evaluate(problem, [plan])[0].per_device, rtol=1e-9)
        assert found.communication == "modelled"


def test_the_card_has_no_errors_of_communication(compute_model):
    card = ModelCard.load(compute_model / "oracle.json")
    assert set(card.errors) == {"forward_compute", "backward_compute", "compute"}
    assert (card.samples["comm"], card.samples["test comm"]) == (0, 0)


def test_half_of_the_networks_of_exchanges_are_no_simulator(model, tmp_path):
    weights = load_weights(model / "oracle.safetensors", "oracle")
    networks = {name: params for name, params in weights.networks.items() if name != "backward"}
    save_weights(tmp_path / "oracle.safetensors", dataclasses.replace(weights, networks=networks))
    with pytest.raises(InputError, match=r"backward\.\S+' is missing"):
        make_cost("simulator", weights=tmp_path)


def test_the_command_trains_on_shard_sets_alone_and_says_so(compute_data, tmp_path, capsys):
    assert main(["pretrain", str(compute_data), "-o", str(tmp_path / "m"), "--epochs", "1"]) == 0
    printed = capsys.readouterr()
    assert "has no exchanges: the simulator will predict compute, and model communication" in printed.err
    assert "forward comm" not in printed.out
    assert make_cost("simulator", weights=tmp_path / "m", role="judge").version
