"""Network namespaces with links of known rates, so that every process has a full-duplex link of its own.

A virtual Ethernet pair joins each namespace to a bridge, and a token bucket at each end of the pair limits the rate. On
the loopback interface, where processes share the cores that copy their bytes, the balance of widths hardly shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

#: Name of the interface inside every namespace, for `GLOO_SOCKET_IFNAME`.
INTERFACE = "eth0"
#: Bytes that a full token bucket lets pass at once; they do not take the time of the rate.
BURST_BYTES = 128 * 1024
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Return why links cannot be shaped here; "" where they can."""
    if os.geteuid() != 0:
        return "network namespaces with shaped links need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else ""


@contextlib.contextmanager
def shaped_links(devices: int, rate_mbit: int) -> Iterator[list[str]]:
    """Make a bridge and one namespace per device, and take all of it away again.

    Args:
        devices: number of namespaces, at most 250.
        rate_mbit: of each link and direction, in Mbit per second.

    Yields:
        Names of the namespaces.

    Raises:
        subprocess.CalledProcessError: `ip` or `tc` failed, e.g. as the kernel lacks virtual Ethernet or token buckets.
    """
    prefix = f"sg{os.getpid() % 10**6}"  # names of interfaces have at most 15 characters
    bridge, names = f"{prefix}br", [f"{prefix}n{d}" for d in range(devices)]
    bucket = f"root tbf rate {rate_mbit}mbit burst {BURST_BYTES} latency 200ms"
    try:
        _run(f"ip link add {bridge} type bridge", f"ip link set {bridge} up")
        for d, name in enumerate(names):
            outside = f"{prefix}v{d}"
            _run(
                f"ip netns add {name}",
                f"ip link add {outside} type veth peer name {INTERFACE} netns {name}",
                f"ip link set {outside} master {bridge} up",
                f"ip -n {name} addr add 10.97.0.{d + 1}/24 dev {INTERFACE}",
                f"ip -n {name} link set {INTERFACE} up",
                f"ip netns exec {name} tc qdisc add dev {INTERFACE} {bucket}",
                f"tc qdisc add dev {outside} {bucket}",
            )
        yield names
    finally:
        for name in names:
            subprocess.run(f"ip netns del {name}".split(), stderr=subprocess.DEVNULL, check=False)
        subprocess.run(f"ip link del {bridge}".split(), stderr=subprocess.DEVNULL, check=False)


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def enter(name: str) -> None:
    """Move the calling thread, and threads that it starts from now on, into a namespace; raises `OSError`."""
    with Path("/var/run/netns", name).open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"namespace {name} cannot be entered")
