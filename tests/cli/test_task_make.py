"""task make: nodes and links."""

from __future__ import annotations

import pytest
import torch

from shardgym import ShardingPlan, ShardingTask, Topology, load_pool, make_cost
from shardgym.cli import main

MAKE = ["task", "make", "--tables", "tables.csv", "--batch-size", "64", "-o", "own.json", "--devices"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a file of tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.csv").write_text("name,num_embeddings,embedding_dim\na,1000,16\nb,1000,16\n")
    return tmp_path


def made(*options: str) -> Topology:
    assert main([*MAKE, *options]) == 0
    return ShardingTask.load("own.json").topology


def test_a_named_topology_brings_its_nodes_and_links(capsys):
    assert made("16", "--topology", "dgx-a100") == Topology.preset("dgx-a100", 16)
    expected = "of 16 devices on 2 nodes (nvlink3+hdr: 300 GB/s inside, 25 GB/s between)\n"
    assert expected in capsys.readouterr().out


def test_nodes_divide_the_devices_of_a_named_topology(capsys):
    topology = made("16", "--topology", "dgx-a100", "--nodes", "4")
    assert (topology.fast_domain_size, topology.inter_bandwidth, topology.device) == (4, 25e9, "a100")
    assert "of 16 devices on 4 nodes" in capsys.readouterr().out


def test_links_of_ones_own(capsys):
    links = ["--intra-bandwidth", "10e9", "--inter-bandwidth", "1.25e9", "--intra-latency-ms", "0"]
    topology = made("4", "--nodes", "2", *links, "--inter-latency-ms", "0.1", "--memory-gib", "1")
    assert topology == Topology(
        4, 2**30, fast_domain_size=2, interconnect="own", intra_bandwidth=10e9, inter_bandwidth=1.25e9,
        intra_latency_ms=0.0, inter_latency_ms=0.1,
    )  # fmt: skip
    assert capsys.readouterr().err == ""
    assert made("4", "--nodes", "2", *links, "--interconnect", "lab", "--force").interconnect == "lab"


def test_links_between_nodes_cost_more_than_those_inside():
    for nodes in ("1", "2"):
        made("2", "--topology", "dgx-a100", "--nodes", nodes, "--batch-size", "65536", "--force")
        task = ShardingTask.load("own.json")
        (cost,) = make_cost("roofline").evaluate(task, [ShardingPlan.table_wise(task, [0, 1])])
        if nodes == "1":
            near = cost.per_device[:, 3]
    assert (cost.per_device[:, 3] > near).all()


def test_nodes_without_links_of_their_own_are_warned_of(capsys):
    assert made("4", "--nodes", "2").fast_domain_size == 2
    assert "shardgym: warning: links between nodes are as fast as inside of nodes" in capsys.readouterr().err
    made("4", "--nodes", "2", "--inter-bandwidth", "4e9", "--force")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("nodes", "devices"), [("1", "8"), ("8", "64")])
def test_one_command_line_does_for_one_node_and_for_eight(nodes, devices, capsys):
    topology = made(devices, "--topology", "dgx-h100", "--nodes", nodes, "--inter-bandwidth", "25e9")
    assert (topology.num_devices, topology.fast_domain_size, topology.inter_bandwidth) == (int(devices), 8, 25e9)
    warning = "--inter-bandwidth is for links between nodes, and all devices are on one node: it plays no part"
    assert (warning in capsys.readouterr().err) == (nodes == "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["4", "--nodes", "3"], "--nodes 3 for 4 devices: they do not divide; nearest is 2 or 4"),
        (["4", "--nodes", "8"], "--nodes 8 for 4 devices: they do not divide; nearest is 4"),
        (["16", "--topology", "dgx-a100", "--nodes", "1"], "'dgx-a100' has 8 on a node; nearest is 2"),
        (["4", "--nodes", "0"], "'--nodes': expected a whole number of at least 1, got '0'"),
        (["4", "--inter-bandwidth", "1e9"], "--inter-bandwidth is for links between nodes, and all devices are on one"),
        (["4", "--inter-latency-ms", "0"], "--inter-latency-ms is for links between nodes"),
        (["4", "--intra-bandwidth", "0"], "'--intra-bandwidth': expected a finite number above 0"),
        (["4", "--intra-latency-ms", "-1"], "'--intra-latency-ms': expected a finite number of at least 0"),
        (["4", "--intra-bandwidth", "1e30"], "intra_bandwidth: expected at most"),
        (["4", "--interconnect", ""], "interconnect"),
        (["4", "--topology", "dgx-a10"], "unknown topology 'dgx-a10': did you mean dgx-a100"),
    ],
)
def test_machines_that_cannot_be_make_no_task(here, capsys, options, message):
    assert main([*MAKE, *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (here / "own.json").exists()


def test_widths_that_a_file_does_not_have_are_warned_of_and_can_be_given(here, capsys):
    """A file of dlrm_datasets has ids and no widths."""
    lengths = torch.tensor([[1, 2, 0], [3, 1, 1]])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    torch.save((torch.arange(8), offsets, lengths), here / "recorded.pt")
    make = [
        "task",
        "make",
        "--tables",
        "recorded.pt",
        "--batch-size",
        "3",
        "-o",
        "own.json",
        "--devices",
        "2",
        "--force",
    ]
    assert main(make) == 0
    assert "warning: 'recorded.pt' has no widths: every table gets 16 columns" in capsys.readouterr().err
    assert main([*make, "--embedding-dim", "64"]) == 0
    assert capsys.readouterr().err == ""
    tables = ShardingTask.load("own.json").tables
    assert [table.embedding_dim for table in tables] == [64, 64]
    assert [table.ids for table in tables] == [table.ids for table in load_pool("recorded.pt").tables]
    assert main([*MAKE, "2", "--embedding-dim", "8", "--force"]) == 0
    assert [table.embedding_dim for table in ShardingTask.load("own.json").tables] == [8, 8]
