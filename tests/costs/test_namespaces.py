"""Links between network namespaces: what they need, that their rates hold, and that nothing of them stays."""

import shutil
import subprocess
import sys

import pytest

from shardgym.costs.fbgemm import namespaces

RANK = """
import sys
from pathlib import Path
from shardgym.costs.fbgemm.namespaces import join_network
import subprocess
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
join_network(rank, 2, 12.5e6, folder, 20)
print(subprocess.run("tc qdisc show dev eth0".split(), capture_output=True, text=True).stdout)
"""


@pytest.fixture
def fresh():
    namespaces.why_not.cache_clear()
    yield
    namespaces.why_not.cache_clear()


def test_links_take_commands_and_a_system_that_allows_them(fresh, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)
    assert namespaces.why_not() == "tc not found: install iproute2 and util-linux"
    namespaces.why_not.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: name)
    refused = subprocess.CompletedProcess((), 1, stdout="", stderr="unshare: Operation not permitted\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    assert "need root" in namespaces.why_not()
    assert "Operation not permitted" in namespaces.why_not()


@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_every_process_has_a_limited_link_and_nothing_stays(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(n), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    for shown in [rank.communicate()[0] for rank in ranks]:
        assert "tbf" in shown
        assert "100Mbit" in shown
    interfaces = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "port0" not in interfaces
    assert "bridge0" not in interfaces
