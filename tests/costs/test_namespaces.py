"""Links between network namespaces: what they need, that their rates hold, and that nothing of them stays."""

import re
import shutil
import subprocess
import sys
import types

import pytest

from shardgym.costs.fbgemm import namespaces

RANK = """
import socket, subprocess, sys, time
from pathlib import Path
from shardgym.costs.fbgemm.namespaces import join_network
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
join_network(rank, 2, 12.5e6, folder, 20)
if rank == 0:
    server = socket.create_server(("10.97.0.1", 5000))
    (folder / "listening").touch()
    connection = server.accept()[0]
    received = 0
    while received < 200_000:
        received += len(connection.recv(65536))
    connection.sendall(b"done")
else:
    deadline = time.monotonic() + 20
    while not (folder / "listening").exists():
        assert time.monotonic() < deadline, "the first device does not listen"
        time.sleep(0.01)
    connection = socket.create_connection(("10.97.0.1", 5000))
    connection.sendall(bytes(200_000))
    connection.recv(4)
print(subprocess.run("tc -s qdisc show".split(), capture_output=True, text=True).stdout)
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
    monkeypatch.setattr(namespaces, "subprocess", types.SimpleNamespace(run=lambda *_, **__: refused))
    assert "need root" in namespaces.why_not()
    assert "Operation not permitted" in namespaces.why_not()


def _sent_bytes(shown: str) -> dict[str, int]:
    """Return what the limited links of a namespace have sent, by interface, from what `tc -s` shows."""
    links = re.findall(r"qdisc tbf \S+ dev (\S+) root .*rate 100Mbit.*\n Sent (\d+) bytes", shown)
    return {name: int(count) for name, count in links}


@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_every_process_has_a_limited_link_and_nothing_stays(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(n), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    first, second = (_sent_bytes(rank.communicate()[0]) for rank in ranks)
    # Both ends of the way to rank 0, the bridge's port and the sender's own link, have let all bytes pass.
    assert first["port0"] > 200_000
    assert second["eth0"] > 200_000
    interfaces = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "port0" not in interfaces
    assert "bridge0" not in interfaces
