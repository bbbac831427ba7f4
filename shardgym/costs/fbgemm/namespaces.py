"""Links of known rates between the processes of one machine, so that every device has a full-duplex link of its own.

Each rank moves into a network namespace of its own. A virtual Ethernet pair joins it to a bridge in the namespace of
rank 0, and a token bucket at each end of the pair limits the rate. Namespaces, pairs and bridge have no names outside
of these processes, and are gone when the processes are. Over the loopback interface, where processes share the cores
that copy their bytes, the balance of widths hardly shows.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import time
from pathlib import Path

from shardgym.errors import MeasurementError

#: Name of the interface inside every namespace, for `GLOO_SOCKET_IFNAME`.
INTERFACE = "eth0"
#: Bytes that a full token bucket lets pass at once; they do not take the time of the rate.
BURST_BYTES = 128 * 1024
#: Rates of links, in bytes per second, at which exchanges were seen to take what the rate says.
SLOWEST_LINK = 0.025e9
FASTEST_LINK = 0.25e9

_CLONE_NEWNET = 0x40000000
_BRIDGE = "bridge0"
#: 1 lets an interface answer for its own addresses alone; every namespace has a setting of its own.
_ARP_IGNORE = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
_POLL_S = 0.01


@functools.cache
def why_not() -> str:
    """Return why links cannot be shaped here; "" where they can."""
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    trial = (
        f"ip link add {_BRIDGE} type bridge && ip link add port0 type veth peer name {INTERFACE} && "
        f"tc qdisc add dev port0 {_bucket(FASTEST_LINK)} && echo 1 > {_ARP_IGNORE}"
    )
    tried = subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    said = tried.stderr.strip().splitlines()
    return f"network namespaces with shaped links need root and a kernel that has them ({said[-1] if said else 'no'})"


def join_network(rank: int, world_size: int, rate: float, folder: Path, timeout_s: float) -> None:
    """Move the calling thread, and threads that it starts from now on, behind a link of its own.

    All ranks, at most 250, call this at the same time, each from the main thread of its process, with a folder that is
    empty at first: there they tell each other what they have done. Rates are in bytes per second and direction.

    Raises:
        MeasurementError: the system refuses, or the others did not come in time.
    """
    deadline = time.monotonic() + timeout_s
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise MeasurementError(f"no network namespace of its own: {os.strerror(ctypes.get_errno())}")
    _tell(folder, f"namespace.{rank}", str(os.getpid()))
    if rank == 0:
        # The bridge shares a namespace with the interface of rank 0. It must not answer for that one's address: what
        # others send to rank 0 would go past its link.
        _ARP_IGNORE.write_text("1", encoding="ascii")
        _run(f"ip link add {_BRIDGE} type bridge", f"ip link set {_BRIDGE} up")
        for other in range(world_size):
            process = _hear(folder, f"namespace.{other}", deadline)
            _run(
                f"ip link add port{other} type veth peer name {INTERFACE} netns {process}",
                f"ip link set port{other} master {_BRIDGE} up",
                f"tc qdisc add dev port{other} {_bucket(rate)}",
            )
            _tell(folder, f"link.{other}", "")
    _hear(folder, f"link.{rank}", deadline)
    _run(
        f"ip addr add 10.97.0.{rank + 1}/24 dev {INTERFACE}",
        f"ip link set {INTERFACE} up",
        f"tc qdisc add dev {INTERFACE} {_bucket(rate)}",
    )


def _bucket(rate: float) -> str:
    return f"root tbf rate {round(8 * rate)}bit burst {BURST_BYTES} latency 200ms"


def _tell(folder: Path, name: str, text: str) -> None:
    """Write a file that the others see whole or not at all."""
    draft = folder / f"{name}.draft"
    draft.write_text(text, encoding="ascii")
    draft.rename(folder / name)


def _hear(folder: Path, name: str, deadline: float) -> str:
    while not (folder / name).exists():
        if time.monotonic() > deadline:
            raise MeasurementError(f"shaped links: no '{name}' from another process in time")
        time.sleep(_POLL_S)
    return (folder / name).read_text(encoding="ascii")


def _run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise MeasurementError(f"'{command}' failed: {done.stderr.strip() or 'it said nothing'}")
