"""Machines by name, tasks on them, what bounds a plan, and what samples cost."""

from __future__ import annotations

import dataclasses

import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.gpu.cards import CARDS
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation.sweep import Machine, task_on
from shardgym.evaluation.sweep.bounds import Savings, savings
from shardgym.evaluation.sweep.results import MachineResult
from shardgym.evaluation.sweep.tables import DenseTime, Economics, render
from shardgym.tasks.step_memory import StepMemory
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
    assert 0 <= sum(dataclasses.astuple(found)[:3]) < 0.6 * total
    return found.bound_by(total)


def test_what_bounds_a_plan():
    wide = tuple(EmbeddingTable(f"w{n}", 5 * 10**7, 256, pooling_factor=30.0) for n in range(4))
    assert bound_of(wide, Machine("h100", 1)) == "memory"
    cached = (EmbeddingTable("n", 1000, 256, pooling_factor=200.0, ids=ZipfIds(s=1.2)),)
    assert bound_of(cached, Machine("h100", 1)) == "lookups"
    single = tuple(EmbeddingTable(f"s{n}", 1000, 256, pooling_factor=1.0) for n in range(16))
    assert bound_of(single, Machine("l40s", 16)) == "links"
    assert bound_of(single[:2], Machine("h100", 2), batch=64) == "start-up"


def result_of(gpu="h100", devices=8, **changes):
    values = {
        "gpu": gpu, "devices": devices, "task_hash": "0" * 64, "batch_size": 8000, "solver": "lpt", "seed": 0,
        "cost_version": "3", "status": "ok", "solve_time_s": 1.0, "plan": "1" * 64, "embedding_ms": 2.0,
        "memory_left_bytes": 3 * GIB, "savings": Savings(memory=0.5, lookups=0.1, links=0.2),
    }  # fmt: skip
    return MachineResult(**values | changes)


def test_prices_of_samples():
    known = Economics(dense={"h100": DenseTime(6.0, 2000)}, price={"h100": 1.8})
    result = result_of()
    # 1,000 samples a device take 3 ms beside 2 ms of embeddings; 8,000 samples in 5 ms; 8 GPUs for 1.8 an hour.
    assert known.step_ms(result) == 5.0
    assert known.samples_per_s(result) == 1.6e6
    assert known.per_billion(result) == pytest.approx(1e9 / 1.6e6 / 3600 * 8 * 1.8)
    assert Economics(dense={"h100": DenseTime(6.0)}).step_ms(result) == 8.0
    assert known.per_billion(result_of(gpu="b200")) is None


def test_a_table_says_why_there_is_no_plan():
    none = result_of(
        devices=1, status="infeasible", reason="too small", plan=None, embedding_ms=None, memory_left_bytes=None,
        savings=None,
    )  # fmt: skip
    text = render([none, result_of()], Economics())
    assert "1 x h100: too small" in text
    assert "memory (-25 %)" in text
    assert "samples/s" not in text


def test_a_result_is_complete():
    with pytest.raises(InputError, match="status 'ok' does not agree with the plan and what it takes"):
        result_of(plan=None)
    with pytest.raises(InputError, match="a machine has a plan or a reason why not"):
        result_of(reason="none")
