"""SimulatorCost: whole plans, with weights trained on a made-up machine."""

import dataclasses

import pytest

from shardgym import InputError, ShardingPlan, Topology, make_cost
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.errors import UnknownNameError

BOTH = pytest.mark.parametrize("role", ["oracle", "judge"])


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


@pytest.mark.parametrize("role", ["oracle", "judge"])
@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({}, []),
        ({"memory_bytes": (2**40,) * 3}, []),
        ({"device": "a100"}, ["devices of 'a100', it predicts "]),
        ({"intra_bandwidth": 3e11}, ["links of 3e+11 bytes/s, those that were fitted have 2.5e+07 to 2.5e+08 bytes/s"]),
        ({"inter_bandwidth": 3e11}, []),  # which three devices of one domain have no use for
        ({"fast_domain_size": 1, "inter_bandwidth": 1e6}, ["links of 1e+06 bytes/s, those that were fitted have "]),
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
    with pytest.raises(InputError, match=r"no weights of the simulator's judge ship: .*shardgym pretrain"):
        make_cost("simulator", role="judge")
    (tmp_path / "made-up").symlink_to(model)
    assert make_cost("simulator").hardware == "made-up"
    with pytest.raises(InputError, match="no weights for hardware 'h100' ship, only for made-up"):
        make_cost("simulator", hardware="h100")
    (tmp_path / "other").symlink_to(model)
    with pytest.raises(InputError, match="give hardware=, one of made-up, other"):
        make_cost("simulator")
