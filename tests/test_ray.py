"""Engines on a Ray cluster of two nodes do every job once, whichever worker is lost."""

import functools
import os
import sys
from pathlib import Path

import pytest
from engine_toys import doubling, dying, reserving

from shardgym.cli import main
from shardgym.engines import make_engine

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

JOBS = list(range(1, 9))


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each."""
    utils = pytest.importorskip("ray.cluster_utils")
    tests = str(Path(__file__).parents[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([tests, str(Path(tests).parent), *sys.path]))
        made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


def test_every_job_is_done_once(cluster, tmp_path):
    found = dict(make_engine("ray").run(functools.partial(doubling, str(tmp_path)), JOBS, alone=False))
    assert {job: twice for job, (_, twice) in found.items()} == {job: 2 * job for job in JOBS}
    assert len({process for process, _ in found.values()}) == len(list(tmp_path.glob("opened.*"))) <= 2


def test_a_lost_worker_is_replaced(cluster, tmp_path):
    found = list(make_engine("ray").run(functools.partial(dying, str(tmp_path), 1), JOBS, alone=False))
    assert sorted((job, twice) for job, (_, twice) in found) == [(job, 2 * job) for job in JOBS]


def test_what_measures_reserves_its_node(cluster):
    found = [answer for _, answer in make_engine("ray").run(reserving, 3 * JOBS, alone=True)]
    assert {cores for _, cores in found} == {1.0}
    assert len({node for node, _ in found}) == 2


def test_without_a_cluster_one_line_says_so(tmp_path, capsys):
    pytest.importorskip("ray")
    arguments = ["run", "--suite", "tiny-v1", "--cost", "roofline", "--out", str(tmp_path), "--engine", "ray"]
    assert main([*arguments, "--address", "127.0.0.1:1"]) == 2
    assert "no Ray cluster at '127.0.0.1:1'" in capsys.readouterr().err
