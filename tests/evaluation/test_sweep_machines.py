"""Machines by name, tasks on them, what bounds a plan, and what samples cost."""

import dataclasses

import pytest

from shardgym import (
    EmbeddingTable,
    InputError,
    RecordedIds,
    ShardingPlan,
    ShardingTask,
    StepMemory,
    Topology,
    ZipfIds,
    make_cost,
)
from shardgym.costs.gpu.cards import CARDS
from shardgym.errors import UnknownNameError
from shardgym.evaluation.sweep import Machine, bound_by, savings, task_on
from shardgym.tasks.topology import GIB, PRESETS

TABLES = tuple(EmbeddingTable(f"t{n}", 10**6, 64, pooling_factor=20.0) for n in range(8))
MODEL = ShardingTask(TABLES, Topology(num_devices=2, memory_bytes=2**40), batch_size=65536)


def test_presets_have_the_links_of_their_cards():
    of_cards = [preset for preset in PRESETS.values() if preset["device"] in CARDS]
    assert {preset["device"] for preset in of_cards} > {"b200", "b300", "gb200", "gb300", "l40s"}
    for preset in of_cards:
        card = CARDS[preset["device"]]
        assert preset["intra_bandwidth"] == card.nvlink
        assert preset["inter_bandwidth"] == card.nic
        assert preset["fast_domain_size"] == card.domain_size
        assert preset["memory_bytes"] < card.memory_bytes


@pytest.mark.parametrize(
    ("gpu", "devices", "domain"), [("gb200", 64, 64), ("gb200", 128, 64), ("gb200", 1024, 64), ("h100", 12, 6),
                                   ("h100", 7, 7), ("h100", 1024, 8), ("h100-pcie", 9, 1), ("gb300", 144, 72)],
)  # fmt: skip
def test_domains_are_filled_evenly(gpu, devices, domain):
    topology = task_on(MODEL, Machine(gpu, devices)).topology
    assert (topology.num_devices, topology.fast_domain_size, topology.device) == (devices, domain, gpu)
    assert topology.inter_bandwidth == CARDS[gpu].nic


def test_a_task_keeps_what_a_step_is_and_gets_the_machine():
    task = task_on(MODEL, Machine("h100", 16))
    assert (task.tables, task.batch_size, task.name) == (TABLES, 65536, "h100-16")
    assert set(task.topology.memory_bytes) == {60 * GIB}
    assert task_on(MODEL, Machine("h100", 16), batch_per_device=100).batch_size == 1600
    assert task_on(MODEL, Machine("h100", 2), memory_bytes=7).topology.memory_bytes == (7, 7)
    whole = dataclasses.replace(MODEL, step_memory=StepMemory(reserved_bytes=(GIB, GIB)))
    assert task_on(whole, Machine("h100", 3)).topology.memory_bytes == (80 * GIB,) * 3
    assert task_on(whole, Machine("h100", 3)).step_memory.reserved_bytes == (GIB,)


def test_in_other_batches_nothing_is_known_of_the_reuse_that_was_counted():
    counted = dataclasses.replace(TABLES[0], reuse_histogram=(1.0, *[0.0] * 16))
    model = dataclasses.replace(MODEL, tables=(counted, TABLES[1]))
    assert task_on(model, Machine("h100", 16)).tables == model.tables
    assert task_on(model, Machine("h100", 16), batch_per_device=100).tables == TABLES[:2]
    recorded = dataclasses.replace(counted, ids=RecordedIds("log.pt", "f", 65536, 65536, "0" * 64))
    with pytest.raises(InputError, match=r"table 't0' has recorded ids, .* in batches of 65536, not 200: import them"):
        task_on(dataclasses.replace(model, tables=(recorded,)), Machine("h100", 2), batch_per_device=100)


@pytest.mark.parametrize(
    ("gpu", "devices", "message"),
    [("b100", 8, "unknown GPU 'b100': did you mean"), ("h100", 0, "devices: expected 1 to 65536, got 0"),
     ("h100", 2**17, "devices: expected 1 to 65536, got 131072")],
)  # fmt: skip
def test_machines_that_there_are_not(gpu, devices, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        task_on(MODEL, Machine(gpu, devices))


def test_reserves_that_differ_between_devices_are_for_no_other_machine():
    uneven = dataclasses.replace(MODEL, step_memory=StepMemory(reserved_bytes=(1, 2)))
    with pytest.raises(InputError, match="reserves 1 to 2 bytes on its devices: expected the same on all"):
        task_on(uneven, Machine("h100", 2))


def bound_of(tables, machine, devices=None, batch=65536):
    task = dataclasses.replace(task_on(MODEL, machine, memory_bytes=2**45), tables=tables, batch_size=batch)
    plan = ShardingPlan.table_wise(task, devices or [n % machine.devices for n in range(len(tables))])
    total = make_cost("gpu").evaluate(task, [plan])[0].total_ms
    found = savings(task, plan)
    assert 0 <= sum(found.values()) < 0.6 * total
    return bound_by(found, total)


def test_what_bounds_a_plan():
    wide = tuple(EmbeddingTable(f"w{n}", 5 * 10**7, 256, pooling_factor=30.0) for n in range(4))
    assert bound_of(wide, Machine("h100", 1)) == "memory"
    cached = (EmbeddingTable("n", 1000, 256, pooling_factor=200.0, ids=ZipfIds(s=1.2)),)
    assert bound_of(cached, Machine("h100", 1)) == "lookups"
    single = tuple(EmbeddingTable(f"s{n}", 1000, 256, pooling_factor=1.0) for n in range(16))
    assert bound_of(single, Machine("l40s", 16)) == "links"
    assert bound_of(single[:2], Machine("h100", 2), batch=64) == "start-up"
