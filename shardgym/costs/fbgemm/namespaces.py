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
from typing import NamedTuple

from shardgym.errors import MeasurementError
from shardgym.tasks.topology import Topology

#: Names of the interfaces inside every namespace, to the same domain and to the others.
_INTERFACES = ("eth0", "eth1")
#: The one that processes meet on, for `GLOO_SOCKET_IFNAME`.
INTERFACE = _INTERFACES[0]
#: What a full token bucket lets pass at once, which takes no time: bytes at least, and seconds of the rate. With less,
#: buckets overflow when the host wakes up late.
_BURST_BYTES = 16 * 1024
_BURST_S = 0.5e-3
#: Most bytes of a socket's send buffer, and of its receive buffer.
SOCKET_BYTES = 32 * 1024
#: Measured steps have links that are so many times slower than those of the task, and count so many seconds of an
#: exchange as one: what the cores take to hand over bytes weighs less. Emulators of networks do so ("To Infinity and
#: Beyond: Time-Warped Network Emulation", NSDI 2006).
DILATION = 4.0
#: Rates of a task's links, in bytes per second, at which exchanges were then seen to take what the rate says.
SLOWEST_LINK = 0.025e9
FASTEST_LINK = 0.25e9

_CLONE_NEWNET = 0x40000000
_BRIDGE = "bridge"
_SETTINGS = Path("/proc/sys/net/ipv4")
#: 1 lets an interface answer for its own addresses alone; every namespace has a setting of its own.
_ARP_IGNORE = Path("/proc/sys/net/ipv4/conf/all/arp_ignore")
_POLL_S = 0.01


class ShapedLinks(NamedTuple):
    """Full-duplex links of every rank; rates are those of the task, in bytes per second and direction."""

    world_size: int
    domain_size: int  #: consecutive ranks that form a domain
    #: One rate where all links are alike; or of a rank's link to its domain, and of its link to all others.
    rates: tuple[float, ...]
    dilation: float  #: how many times slower than that links are
    socket_bytes: int  #: of a socket's buffers, see `SOCKET_BYTES`

    @classmethod
    def of(cls, topology: Topology, *, dilation: float, socket_bytes: int = SOCKET_BYTES) -> ShapedLinks:
        """Return the links of a topology's devices."""
        size = topology.num_devices
        rates = (topology.intra_bandwidth, topology.inter_bandwidth)
        alike = topology.fast_domain_size >= size or rates[0] == rates[1]
        return cls(size, topology.fast_domain_size, rates[:1] if alike else rates, dilation, socket_bytes)

    @property
    def host_settings(self) -> dict[str, str]:
        """What every namespace sets below `net.ipv4`, whatever the host has.

        A sender is through with a message when the kernel has taken its bytes, so buffers decide when ranks leave an
        exchange. After a pause, the default is to send slowly at first.
        """
        limits = f"4096 {self.socket_bytes} {self.socket_bytes}"
        return {
            "tcp_wmem": limits, "tcp_rmem": limits, "tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0",
        }  # fmt: skip


@functools.cache
def why_not() -> str:
    """Return why links cannot be shaped here; "" where they can."""
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    trial = (
        f"ip link add {_BRIDGE} type bridge && ip link add port0 type veth peer name {INTERFACE} && "
        f"tc qdisc add dev port0 {_bucket(1e6)} && echo 1 > {_ARP_IGNORE}"
    )
    tried = subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    said = tried.stderr.strip().splitlines()
    return f"network namespaces with shaped links need root and kernel support ({said[-1] if said else 'no message'})"


def join_network(rank: int, links: ShapedLinks, folder: Path, timeout_s: float) -> None:
    """Move the calling thread, and threads that it starts from now on, behind links of its own.

    All ranks call this at the same time, each from the main thread of its process, with a folder that is empty at
    first: there they tell each other what they have done. Where the system refuses, or others do not come in
    time, it raises `MeasurementError`.
    """
    deadline = time.monotonic() + timeout_s
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise MeasurementError(f"cannot create a network namespace: {os.strerror(ctypes.get_errno())}")
    for name, value in links.host_settings.items():
        try:
            (_SETTINGS / name).write_text(value, encoding="ascii")
        except OSError as error:
            raise MeasurementError(f"cannot set net.ipv4.{name} = {value}: {error.strerror}") from None
    _tell(folder, f"namespace.{rank}", str(os.getpid()))
    kinds = list(enumerate(rate / links.dilation for rate in links.rates))
    if rank == 0:
        # The bridges share a namespace with the interfaces of rank 0. They must not answer for its address: what
        # others send to rank 0 would go past its link.
        _ARP_IGNORE.write_text("1", encoding="ascii")
        _run(*(f"ip link add {_BRIDGE}{kind} type bridge" for kind, _ in kinds))
        _run(*(f"ip link set {_BRIDGE}{kind} up" for kind, _ in kinds))
        for other in range(links.world_size):
            process = _hear(folder, f"namespace.{other}", deadline)
            for kind, rate in kinds:
                port = f"port{other}-{kind}"
                _run(
                    f"ip link add {port} type veth peer name {_INTERFACES[kind]} netns {process}",
                    f"ip link set {port} master {_BRIDGE}{kind} up",
                    f"tc qdisc add dev {port} {_bucket(rate)}",
                )
            _tell(folder, f"link.{other}", "")
    _hear(folder, f"link.{rank}", deadline)
    for kind, rate in kinds:
        _run(
            f"ip addr add {_address(rank)}/32 dev {_INTERFACES[kind]}",
            f"ip link set {_INTERFACES[kind]} up",
            f"tc qdisc add dev {_INTERFACES[kind]} {_bucket(rate)}",
        )
    for other in range(links.world_size):
        if other != rank:
            outside = len(kinds) > 1 and other // links.domain_size != rank // links.domain_size
            _run(f"ip route add {_address(other)}/32 dev {_INTERFACES[outside]} src {_address(rank)}")


def _address(rank: int) -> str:
    return f"10.97.{rank // 250}.{rank % 250 + 1}"


def _bucket(rate: float) -> str:
    burst_bytes = max(_BURST_BYTES, round(_BURST_S * rate))
    return f"root tbf rate {round(8 * rate)}bit burst {burst_bytes} latency 200ms"


def _tell(folder: Path, name: str, text: str) -> None:
    """Write a file that the others see whole or not at all."""
    draft = folder / f"{name}.draft"
    draft.write_text(text, encoding="ascii")
    draft.rename(folder / name)


def _hear(folder: Path, name: str, deadline: float) -> str:
    while not (folder / name).exists():
        if time.monotonic() > deadline:
            raise MeasurementError(f"shaped links: timed out waiting for '{name}' from another process")
        time.sleep(_POLL_S)
    return (folder / name).read_text(encoding="ascii")


def _run(*commands: str) -> None:
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise MeasurementError(f"'{command}' failed: {done.stderr.strip() or 'no message'}")
