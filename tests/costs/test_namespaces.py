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
from shardgym.costs.fbgemm.namespaces import ShapedLinks, join_network
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
join_network(rank, ShapedLinks(3, 2, (25e6, 50e6), 2.0, 16384), folder, 20)
if rank == 0:
    server = socket.create_server(("10.97.0.1", 5000))
    (folder / "listening").touch()
    for _ in range(2):
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
print("buffers", Path("/proc/sys/net/ipv4/tcp_wmem").read_text())
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


def _sent_bytes(shown: str, rate: str) -> dict[str, int]:
    """Return what the links of a rate have sent in a namespace, by interface, from what `tc -s` shows."""
    links = re.findall(rf"qdisc tbf \S+ dev (\S+) root .*rate {rate} .*\n Sent (\d+) bytes", shown)
    return {name.partition("@")[0]: int(count) for name, count in links}


@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_every_process_has_limited_links_inside_and_between_domains_and_nothing_stays(tmp_path):
    """Ranks 0 and 1 are a domain with links of 25e6 bytes/s, and have others of 50e6 to rank 2, all slower by 2."""
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(n), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    shown = [rank.communicate()[0] for rank in ranks]
    assert all("buffers 4096\t16384\t16384" in text for text in shown)
    # Both ends of the way to rank 0, the bridge's port and the sender's own link, have let all bytes pass.
    for sender, rate, port, link in ((1, "100Mbit", "port0-0", "eth0"), (2, "200Mbit", "port0-1", "eth1")):
        assert _sent_bytes(shown[0], rate)[port] > 200_000
        assert _sent_bytes(shown[sender], rate)[link] > 200_000
    interfaces = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "port0" not in interfaces
    assert "bridge0" not in interfaces
