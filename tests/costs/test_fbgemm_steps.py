"""Versions 2 and 3 of the measured cost: complete steps of all devices, and how their parts add up."""

import os
import subprocess
import sys

import numpy as np
import pytest

from shardgym.costs import make_cost
from shardgym.costs.fbgemm.jobs import shard_sets
from shardgym.costs.fbgemm.step import PARTS, PlanSteps, StepMarks, parts_of, phases_of
from shardgym.costs.link_model import LinkModel, shipped_model
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError
from shardgym.plan import Shard, ShardingPlan
from shardgym.rendering import render_plan
from shardgym.table import EmbeddingTable, ZipfIds
from shardgym.task import ShardingTask
from shardgym.topology import Topology

A = EmbeddingTable("a", 1000, 16, 5.0, ZipfIds(s=1.05, lengths="poisson"))
B, C = EmbeddingTable("b", 500, 8, 3.0), EmbeddingTable("c", 200, 4, 1.0)
QUICK = {"rounds": 2, "warmups": 1, "iterations": 2, "version": "2"}


def task(tables=(A, B, C), devices=2, **changes):
    topology = Topology(num_devices=devices, memory_bytes=2**60)
    return ShardingTask(**{"tables": tables, "topology": topology, "batch_size": 65, **changes})


TASK = task()
APART, TOGETHER = ShardingPlan.table_wise(TASK, [0, 1, 1]), ShardingPlan.table_wise(TASK, [0, 0, 0])


@pytest.fixture(scope="module")
def cost():
    pytest.importorskip("fbgemm_gpu")
    with make_cost("fbgemm", **QUICK) as model:
        yield model


@pytest.mark.measured
def test_a_step_has_five_phases_that_the_total_includes(cost):
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert (apart.per_device > 0).all()
    for measured in (apart, together):
        assert (measured.per_device[:, 0] > 0).all()
        assert measured.total_ms == measured.per_device.sum(axis=1).max()
        assert (measured.version, measured.compute, measured.repeats) == ("2", "measured", 4)
        assert PlanCost.from_json(measured.to_json()) == measured
    assert any("CPU time" in note for note in apart.notes)


@pytest.mark.measured
@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adagrad"])
def test_row_and_column_shards_of_any_optimiser_and_type_make_a_step(cost, optimizer):
    problem = task(optimizer=optimizer, precision="fp16")
    shards = [Shard("a", (0, 300), (0, 16), 0), Shard("a", (300, 1000), (0, 4), 0)]
    shards += [Shard("a", (300, 1000), (4, 16), 1), Shard.whole(B, 1), Shard.whole(C, 1)]
    (measured,) = cost.evaluate(problem, [ShardingPlan.of(problem, shards)])
    assert measured.reason is None
    assert (measured.per_device > 0).all()


@pytest.mark.measured
def test_devices_without_cores_exchange_by_the_link_model(cost, monkeypatch):
    monkeypatch.setattr("shardgym.costs.fbgemm.cost.usable_cores", lambda: [0])
    (modelled,) = cost.evaluate(TASK, [APART])
    assert (modelled.compute, modelled.communication) == ("measured", "modelled")
    assert any("modelled for links of 'loopback'" in note for note in modelled.notes)
    # The backward exchange waits for nobody: every device takes what the widest does, and packing on top.
    least = shipped_model().start_ms + shipped_model().peer_ms * (TASK.num_devices - 1)
    assert (modelled.per_device[:, 3] > least).all()


@pytest.mark.measured
def test_a_plan_that_fails_does_not_take_the_others_along(cost):
    enormous = task(tables=(EmbeddingTable("enormous", 2**36, 64),))
    (refused,) = cost.evaluate(enormous, [ShardingPlan.table_wise(enormous, [0])])
    assert "bytes are available" in refused.reason
    assert cost.evaluate(TASK, [APART])[0].feasible


@pytest.mark.measured
def test_received_ids_are_grouped_by_shard_with_the_samples_of_all_devices_in_order():
    import torch

    from shardgym.costs.fbgemm.step_rank import _PlanOnRank

    sets = shard_sets(TASK, APART)
    held = _PlanOnRank(sets, samples=[2, 1], number=1)  # shards b and c; device 0 has two samples, device 1 has one
    lengths = torch.tensor([1, 2, 0, 1, 2, 1])  # device 0: b (1, 2), c (0, 1); device 1: b (2), c (1)
    ids = torch.tensor([10, 11, 12, 20, 13, 14, 21])
    grouped, offsets = held._grouped(ids, lengths, [4, 2])
    assert grouped.tolist() == [10, 11, 12, 13, 14, 20, 21]
    assert offsets.tolist() == [0, 1, 3, 5, 5, 6, 7]


def marks(start, works):
    """Marks of a rank whose parts take so many seconds on both clocks."""
    clock = start + np.concatenate([[0.0], np.cumsum(works)])
    return StepMarks(clock[None], clock[None], np.zeros((1, 3, 2), dtype=np.int64))


def test_an_exchange_counts_from_the_moment_that_the_last_device_enters():
    first = np.full(len(PARTS), 0.001)
    late = first.copy()
    late[PARTS.index("forward")] += 0.004
    first[PARTS.index("output_exchange")] += 0.004  # waits for the late one
    ms = parts_of([marks(0.0, first), marks(0.0, late)])[0]
    np.testing.assert_allclose(ms[:, PARTS.index("output_exchange")], 1.0)
    np.testing.assert_allclose(ms[:, PARTS.index("forward")], [1.0, 5.0])


def steps(**parts):
    """One round of one step on two devices in which the parts named take so many ms on each, others nothing."""
    ms = np.zeros((1, 1, 2, len(PARTS)))
    for name, values in parts.items():
        ms[0, 0, :, PARTS.index(name)] = values
    sent = np.array([[0, 10], [30, 0]])[None, None]
    return PlanSteps(ms, sent, 2 * sent, 100 * sent)


def test_the_early_device_waits_in_the_forward_exchange():
    some = steps(values_exchange=2, group_ids=[1, 0], forward=[3, 8], output_exchange=1, backward=[9, 4])
    phases = phases_of(TASK, some, links=None, ids_hidden=False)
    assert phases.per_device.tolist() == [[3, 3, 5, 0, 9], [2, 8, 1, 0, 4]]
    # With ids hidden, devices last met in the exchange before: both have had 12 ms of work since.
    hidden = phases_of(TASK, some, links=None, ids_hidden=True)
    assert hidden.per_device[:, 1:].tolist() == [[3, 1, 0, 9], [8, 1, 0, 4]]


LINKS = LinkModel(0.5, 0.25, 1.0, 0.0, "toy", 0.0, 1)
WIRE = Topology(num_devices=2, memory_bytes=1, intra_bandwidth=1e6, intra_latency_ms=0.25)


def test_modelled_exchanges_are_priced_by_what_was_sent():
    problem = task(topology=WIRE)
    phases = phases_of(problem, steps(forward=1, backward=1), links=LINKS, ids_hidden=False)
    # Busiest direction: 30 lengths and 60 ids of 8 bytes, 3,000 values of 4 bytes; 1,000 bytes take 1 ms.
    np.testing.assert_allclose(phases.per_device[:, 0], 1 + 0.24 + 1 + 0.48)
    np.testing.assert_allclose(phases.per_device[:, 2:4], 1 + 12)


def test_the_widest_device_decides_and_domains_have_links_of_their_own():
    together = np.zeros(3)
    sent = np.array([[7000, 1000, 2000], [0, 0, 500], [500, 0, 0]])
    flat = Topology(num_devices=3, memory_bytes=1, intra_bandwidth=1e6, intra_latency_ms=0)
    np.testing.assert_allclose(LINKS.exit_ms(flat, together, sent), 1.0 + 3.0)
    apart = Topology(
        num_devices=3, memory_bytes=1, fast_domain_size=2, intra_bandwidth=1e9, inter_bandwidth=1e5,
        intra_latency_ms=0, inter_latency_ms=2,
    )  # fmt: skip
    # Device 0 sends 2,000 bytes to device 2 at 100 bytes a ms, device 1 sends 500 there: receiving them takes longest.
    np.testing.assert_allclose(LINKS.exit_ms(apart, together, sent), [1 + 2 + 20, 1 + 2 + 20, 1 + 2 + 25])


def test_a_wide_device_that_comes_early_has_sent_when_the_last_one_comes():
    flat = Topology(num_devices=2, memory_bytes=1, intra_bandwidth=1e6, intra_latency_ms=0)
    sent = np.array([[0, 4000], [1000, 0]])
    links = LinkModel(0.0, 0.0, 1.0, 0.0, "toy", 0.0, 1)
    # The late device takes in its 4,000 bytes from when it comes, its own 1,000 leave meanwhile.
    np.testing.assert_allclose(links.exit_ms(flat, np.array([0.0, 10.0]), sent), [11, 14])
    np.testing.assert_allclose(links.exit_ms(flat, np.array([10.0, 0.0]), sent), [14, 14])


def test_ids_count_unless_hidden():
    per_device = np.array([[5.0, 1, 1, 1, 1], [1.0, 1, 1, 1, 2]])
    shown = PlanCost(per_device, "toy", "1", "toy")
    hidden = PlanCost(per_device, "toy", "1", "toy", ids_hidden=True)
    assert (shown.device_ms.tolist(), shown.slowest_device) == ([9, 6], 0)
    assert (hidden.device_ms.tolist(), hidden.slowest_device) == ([4, 5], 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": "2", "device": "cuda"}, "it measures on the CPU"),
        ({"version": "4"}, "expected one of 1, 2, 3"),
        ({"ids_hidden": True}, "version '1' exchanges no ids"),
    ],
)
def test_settings_that_do_not_go_together_are_bad_input(settings, message):
    with pytest.raises(InputError, match=message):
        make_cost("fbgemm", **settings)


@pytest.mark.measured
def test_the_version_says_whether_ids_count_and_old_settings_stay():
    with make_cost("fbgemm") as first, make_cost("fbgemm", version="2", ids_hidden=True) as hidden:
        assert (first.version, hidden.version) == ("1", "2-hidden-ids")
        assert "version" not in first.settings()
        assert make_cost("fbgemm", **hidden.settings()).version == hidden.version
        assert make_cost("fbgemm", version=2).settings()["version"] == "2"


def test_a_rank_that_keeps_freed_memory_gets_large_blocks_from_there():
    """In a process of its own, as it depends on what a process has freed before."""
    pytest.importorskip("fbgemm_gpu", reason="needs the extra 'cpu'")
    code = """
import ctypes, torch
from shardgym.costs.fbgemm.step_rank import keep_freed_memory
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
def mapped_anew(mebibytes):
    before = mallinfo().hblkhd
    block = torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    return mallinfo().hblkhd - before >= mebibytes * 2**20
print(mapped_anew(16), mapped_anew(24))
keep_freed_memory()
print(mapped_anew(30))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment, text=True)
    assert done.stdout.split() == ["True", "True", "False"]


@pytest.mark.measured
def test_version_3_measures_complete_steps_and_says_so():
    with make_cost("fbgemm", version=3, rounds=2, warmups=0, iterations=1) as cost:
        (found,) = cost.evaluate(TASK, [APART])
    assert (found.version, found.compute) == ("3", "measured")
    assert found.per_device[:, 0].min() > 0


@pytest.mark.measured
def test_more_devices_than_processes_make_sense_are_refused(cost):
    many = task(devices=500)
    with pytest.raises(InputError, match="a process for each of 500 devices"):
        cost.evaluate(many, [ShardingPlan.table_wise(many, [0, 1, 2])])


def test_a_rendered_plan_shows_ids_and_sums_them():
    shown = PlanCost([[2.5, 1, 1, 1, 1], [0.5, 1, 1, 1, 1]], "toy", "1", "toy")
    lines = render_plan(TASK, APART, shown, width=4000).splitlines()
    header = next(line for line in lines if "total ms" in line)
    assert " ids " in header
    assert any("2.500" in line and "6.500" in line for line in lines)
