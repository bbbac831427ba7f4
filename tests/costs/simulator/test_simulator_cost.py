"""SimulatorCost: whole plans, and files of weights; those of a made-up machine, and those trained on kernels alone."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from shardgym import InputError, ShardingPlan, Topology, make_cost
from shardgym.cli import main
from shardgym.costs.links import exchange_times, transfer_ms
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.shard_keys import PlanBatch, output_widths
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.weights import load_weights, save_weights
from shardgym.errors import UnknownNameError
from shardgym.plans.migration import rebound

BOTH = pytest.mark.parametrize("role", ["oracle", "judge"])
OTHER_KIND = {"precision": "fp16", "optimizer": "adagrad"}


def test_cost_says_what_it_is_and_can_be_made_again(oracle, task, plans):
    assert oracle.deterministic
    assert oracle.hardware == "made-up"
    again = make_cost("simulator", **oracle.settings())
    assert again.version == oracle.version
    assert again.evaluate(task, plans) == oracle.evaluate(task, plans)


@BOTH
def test_times_are_positive_and_an_empty_device_computes_for_free(model, role, task, plans):
    costs = make_cost("simulator", weights=model, role=role).evaluate(task, plans)
    for cost in costs[:-1]:
        assert (cost.per_device > 0).all()
    only_second = costs[-1].per_device
    assert only_second[[0, 2]][:, [1, 4]].tolist() == [[0, 0], [0, 0]]
    assert (only_second[1] > 0).all()
    assert (costs[0].compute, costs[0].communication) == ("predicted", "modelled")


@BOTH
@pytest.mark.parametrize("devices", [1, 2, 5, 64])
def test_one_set_of_weights_serves_any_number_of_devices(model, role, task, devices):
    wide = dataclasses.replace(task, topology=Topology(num_devices=devices, memory_bytes=2**30))
    plan = ShardingPlan.table_wise(wide, [n % devices for n in range(12)])
    (cost,) = make_cost("simulator", weights=model, role=role).evaluate(wide, [plan])
    assert cost.per_device.shape == (devices, 5)
    assert (cost.per_device[:, [0, 2, 3]] > 0).all()  # one device exchanges nothing, but groups ids and joins values


@BOTH
@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({}, []),
        ({"memory_bytes": (2**40,) * 3}, []),
        ({"device": "a100"}, ["devices of 'a100', it predicts "]),
        ({"intra_bandwidth": 3e11}, ["links of 3e+11 bytes/s, it was fitted to 2.5e+07 to 2.5e+08 bytes/s"]),
        ({"inter_bandwidth": 3e11}, []),  # which three devices of one domain have no use for
        ({"fast_domain_size": 1, "inter_bandwidth": 1e6}, ["links of 1e+06 bytes/s, it was fitted to "]),
        ({"device": "h100", "intra_bandwidth": 3e11}, ["devices of 'h100'", "links of 3e+11"]),
    ],
)
def test_devices_and_links_of_another_kind_are_noted(model, task, plans, changes, notes, role):
    cost = make_cost("simulator", weights=model, role=role)
    other = dataclasses.replace(task, topology=dataclasses.replace(task.topology, **changes))
    moved = [dataclasses.replace(plan, task_hash=other.digest) for plan in plans[:2]]
    for found in [answer.notes for answer in cost.evaluate(other, moved)] + [cost.notes(other)]:
        assert len(found) == len(notes)
        for note, expected in zip(found, notes, strict=True):
            assert note.startswith(f"{UNFAMILIAR}: {expected}")


@pytest.mark.parametrize(("field", "value"), [("precision", "fp16"), ("optimizer", "adam")])
def test_a_kind_of_task_that_was_not_trained_on_is_refused(oracle, task, field, value):
    other = dataclasses.replace(task, **{field: value})
    plan = ShardingPlan.table_wise(other, [n % 3 for n in range(12)])
    with pytest.raises(InputError, match=f"not trained on {field} '{value}'"):
        oracle.evaluate(other, [plan])
    with pytest.raises(InputError, match=f"not trained on {field} '{value}'"):
        oracle.additive().add_task(other)


def test_weights_are_found_by_folder_or_hardware_and_errors_say_how_to_get_them(monkeypatch, tmp_path, model):
    with pytest.raises(InputError, match=r"no simulator weights at .*shardgym collect.*shardgym pretrain"):
        make_cost("simulator", weights=tmp_path)
    with pytest.raises(UnknownNameError, match="oracle"):
        make_cost("simulator", weights=tmp_path, role="oracel")
    monkeypatch.setattr("shardgym.costs.simulator.weights.SHIPPED", tmp_path)
    with pytest.raises(InputError, match=r"no simulator weights for role 'judge' ship: .*shardgym pretrain"):
        make_cost("simulator", role="judge")
    (tmp_path / "made-up").symlink_to(model)
    assert make_cost("simulator").hardware == "made-up"
    with pytest.raises(InputError, match="no weights for hardware 'h100' ship, only for made-up"):
        make_cost("simulator", hardware="h100")
    (tmp_path / "other").symlink_to(model)
    with pytest.raises(InputError, match="set hardware= to one of made-up, other"):
        make_cost("simulator")


@pytest.fixture
def file(model, tmp_path):
    return shutil.copy(model / "oracle.safetensors", tmp_path / "oracle.safetensors")


def edit_header(path, **changes):
    """Rewrite the header of a safetensors file: 8 bytes of length, then JSON."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["shardgym"] = json.dumps({**json.loads(header["__metadata__"]["shardgym"]), **changes})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def test_weights_come_back_as_they_were_saved(file, tmp_path):
    weights = load_weights(file, "oracle")
    again = tmp_path / "again.safetensors"
    assert save_weights(again, weights) == weights.digest
    assert again.read_bytes() == file.read_bytes()
    loaded = load_weights(again, "oracle", "made-up")
    assert np.array_equal(weights.lines, loaded.lines)
    assert (weights.links, weights.context) == (loaded.links, loaded.context)
    for name, value in weights.params.items():
        assert np.array_equal(value, loaded.params[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "shardgym.simulator/9"}, "schema is 'shardgym.simulator/9'"),
        ({"hardware": "h100"}, "hardware is 'h100', expected 'made-up'"),
        ({"context": "asleep"}, "weights of another version"),
        ({"role": "judge"}, "role is 'judge', expected 'oracle'"),
    ],
)
def test_weights_for_something_else_are_named(file, changes, message):
    edit_header(file, **changes)
    with pytest.raises(InputError, match=rf"oracle\.safetensors: {message}"):
        make_cost("simulator", weights=file, hardware="made-up")


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.1, 0.99])
def test_truncated_weights_are_named(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(InputError, match=r"oracle\.safetensors: damaged, or not written by"):
        make_cost("simulator", weights=file)


@pytest.mark.parametrize("name", ["compute.head.1.weight", "compute.fixed.prior", "density.centres", "step.lines"])
def test_what_is_missing_or_not_finite_is_named(file, name):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, file, metadata)
    with pytest.raises(InputError, match=f"tensor '{name}' holds non-finite numbers"):
        make_cost("simulator", weights=file)
    del tensors[name]
    save_file(tensors, file, metadata)
    with pytest.raises(InputError, match=f"weights of another version .*{name.removeprefix('compute.')}"):
        make_cost("simulator", weights=file)


@pytest.fixture(scope="module")
def compute_data(made_up_rows, write_samples, tmp_path_factory):
    """Every second sample is of another kind."""
    rows = [row | (OTHER_KIND if n % 2 else {}) for n, row in enumerate(made_up_rows["compute"])]
    return write_samples(tmp_path_factory.mktemp("compute-samples"), {"compute": rows})


@pytest.fixture(scope="module")
def compute_model(compute_data, tmp_path_factory):
    from shardgym.training.data import load_data
    from shardgym.training.fitting import FitSettings
    from shardgym.training.pretrain import pretrain

    folder = tmp_path_factory.mktemp("compute-model")
    pretrain(load_data(compute_data), folder, FitSettings(epochs=2, least_steps=0, members=1), seed=5)
    return folder


@BOTH
def test_exchanges_are_those_of_the_links_and_ids_are_hidden(compute_model, role, task, plans):
    cost = make_cost("simulator", weights=compute_model, role=role)
    for plan, found in zip(plans, cost.evaluate(task, plans), strict=True):
        assert (found.compute, found.communication) == ("predicted", "modelled")
        transfer = transfer_ms(task.topology, np.array(output_widths(task, plan)), task.batch_size, 4)
        expected = exchange_times(found.per_device[:, [1, 4]], transfer, ids_hidden=True)
        np.testing.assert_allclose(found.per_device[:, 2], expected.forward_ms, rtol=1e-12)
        np.testing.assert_allclose(found.per_device[:, 3], expected.backward_ms, rtol=1e-12)
        assert not found.per_device[:, 0].any()


def test_many_tasks_in_one_call_have_the_links_of_their_own(compute_model, task, plans):
    cost = make_cost("simulator", weights=compute_model)
    predictor = cost.predictor()
    links = [{}, {"intra_bandwidth": 1e7}, {"fast_domain_size": 2}]
    tasks = [dataclasses.replace(task, topology=dataclasses.replace(task.topology, **of)) for of in links]
    tasks.append(dataclasses.replace(task, **OTHER_KIND))
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
    assert "has no complete steps: the simulator will only predict kernels, and model exchanges" in printed.err
    assert "step" not in printed.out
    assert make_cost("simulator", weights=tmp_path / "m", role="judge").version
    card = ModelCard.load(tmp_path / "m" / "oracle.json")
    assert set(card.errors) == {"forward_compute", "backward_compute", "compute"}
    assert (card.samples["steps"], card.samples["test steps"]) == (0, 0)
