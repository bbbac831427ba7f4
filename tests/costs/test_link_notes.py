"""Measured and predicted exchanges say that the links of the task played no part."""

import dataclasses

import pytest

from shardgym.costs.links import link_notes
from shardgym.topology import Topology


def notes(toy_task, topology, communication):
    return link_notes(dataclasses.replace(toy_task, topology=topology), communication, "cpu-lab")


@pytest.mark.parametrize("communication", ["measured", "predicted"])
def test_links_of_a_named_topology_are_noted(toy_task, communication):
    note = f"{communication} communication is that of cpu-lab: the task's links ('nvlink3+hdr') play no part"
    assert notes(toy_task, Topology.preset("dgx-a100", 4), communication) == (note,)


@pytest.mark.parametrize(
    "change",
    [{"fast_domain_size": 2}, {"intra_bandwidth": 1e9}, {"inter_bandwidth": 1e9}, {"intra_latency_ms": 1.0},
     {"inter_latency_ms": 1.0}, {"interconnect": "lab"}],
)  # fmt: skip
def test_any_link_that_is_not_the_default_is_noted(toy_task, change):
    assert len(notes(toy_task, Topology(num_devices=4, memory_bytes=700, **change), "measured")) == 1


@pytest.mark.parametrize(
    ("topology", "communication"),
    [
        (Topology.preset("dgx-a100", 4), "modelled"), (Topology.preset("dgx-a100", 1), "measured"),
        (Topology.preset("cpu", 4), "measured"), (Topology(num_devices=4, memory_bytes=700), "predicted"),
    ],
)  # fmt: skip
def test_links_that_count_or_that_nobody_named_are_not(toy_task, topology, communication):
    assert notes(toy_task, topology, communication) == ()
