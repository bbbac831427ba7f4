"""Network namespaces with links of known rates, and the link model of the measured cost, fitted to all-to-alls there.

    sudo python tools/fit_link_model.py [--rate MBIT ...] [--devices N ...] [-o FILE]

Every device becomes a process in a network namespace of its own, so it has a full-duplex link: a virtual Ethernet pair
joins the namespace to a bridge, and a token bucket at each end of the pair limits the rate. On the loopback interface,
where processes share the cores that copy their bytes, the balance of widths hardly shows. Times come from gloo's
`all_to_all_single`, started at once, the slowest device deciding. What was fitted is in
`shardgym/costs/link_model.json`. It takes root, `ip` and `tc`; without them the tool says so and fits nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.costs.fbgemm.machine import cpu_tag
from shardgym.costs.link_model import LinkModel
from shardgym.costs.links import samples_per_device

#: Name of the interface inside every namespace, for `GLOO_SOCKET_IFNAME`.
INTERFACE = "eth0"
#: Bytes that a full token bucket lets pass at once; they do not take the time of the rate.
BURST_BYTES = 128 * 1024
_CLONE_NEWNET = 0x40000000

_ITERATIONS = 5
_WARMUPS = 1
_LEAD_S = 0.003
#: Columns of each device, as shares of the widest: balanced, one or two wide ones, and one that has everything.
_SHAPES = ((1.0,), (1.0, 0.5, 0.25, 0.25), (1.0, 0.2, 0.2, 0.2), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0))
_WIDEST = (4, 64, 128, 256, 512)
_BATCH = 2048


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


def cases(devices: int) -> list[tuple[list[int], bool]]:
    """Return the columns of all devices and whether gradients go back, for every exchange to time.

    Forward, the widest device sends most; backward, and where ids are exchanged, it receives most.
    """
    shapes = [[shape[d % len(shape)] for d in range(devices)] for shape in _SHAPES]
    return [
        ([4 * round(widest * share / 4) for share in shape], backward)
        for widest in _WIDEST for shape in shapes for backward in (False, True)
    ]  # fmt: skip


def rank_main(rank: int, devices: int, rendezvous: str, namespace: str) -> list[list[float]]:
    """Time all exchanges from inside the namespace; returns seconds from the common start, by case and iteration."""
    enter(namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=devices)
    samples = samples_per_device(_BATCH, devices).tolist()
    times = []
    for widths, backward in cases(devices):
        send = [widths[rank] * count for count in samples]
        receive = [width * samples[rank] for width in widths]
        if backward:
            send, receive = receive, send
        outgoing = torch.ones(sum(send))
        incoming = torch.empty(sum(receive))
        seconds = []
        for _ in range(_WARMUPS + _ITERATIONS):
            start = torch.tensor([time.perf_counter() + _LEAD_S], dtype=torch.float64)
            dist.all_reduce(start, op=dist.ReduceOp.MAX)
            time.sleep(max(0.0, float(start) - time.perf_counter()))
            dist.all_to_all_single(incoming, outgoing, receive, send)
            seconds.append(time.perf_counter() - float(start))
        times.append(seconds[_WARMUPS:])
    dist.destroy_process_group()
    return times


def time_exchanges(devices: int, rate_mbit: int) -> list[dict[str, Any]]:
    """Return the exchanges of `cases` with the median of the slowest device's time in ms."""
    with tempfile.TemporaryDirectory() as folder, shaped_links(devices, rate_mbit) as names:
        command = [sys.executable, __file__, "--rank"]
        arguments = ["--devices", str(devices), "--rendezvous", str(Path(folder, "rendezvous"))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [*command, str(rank), "--namespace", name, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank, name in enumerate(names)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{devices} devices at {rate_mbit} Mbit/s: a rank failed")
    times = np.array([json.loads(output.splitlines()[-1]) for output in outputs])
    slowest_ms = np.median(times.max(axis=0), axis=1) * 1e3
    return [
        {"devices": devices, "rate_mbit": rate_mbit, "widths": widths, "backward": backward, "ms": round(float(ms), 4)}
        for (widths, backward), ms in zip(cases(devices), slowest_ms, strict=True)
    ]


def fit(exchanges: Sequence[dict[str, Any]]) -> LinkModel:
    """Fit by least squares of relative errors; a figure that would be negative is 0."""
    rows = []
    for exchange in exchanges:
        widths = np.array(exchange["widths"])
        samples = samples_per_device(_BATCH, exchange["devices"])
        sent = 4 * widths * (_BATCH - samples)
        received = 4 * (widths.sum() - widths) * samples
        busier = np.maximum(sent, received)
        rate = exchange["rate_mbit"] * 1e6 / 8
        rows.append(
            [
                1.0,
                exchange["devices"] - 1,
                max(0, busier.max() - BURST_BYTES) / rate * 1e3,
                (sent + received).max() / 1e6,
            ]
        )
    design = np.array(rows)
    ms = np.array([exchange["ms"] for exchange in exchanges])
    kept = [0, 1, 2, 3]
    while True:
        found = np.linalg.lstsq(design[:, kept] / ms[:, None], np.ones(len(ms)), rcond=None)[0]
        if (found >= 0).all():
            break
        del kept[int(found.argmin())]
    figures = np.zeros(4)
    figures[kept] = found
    error = statistics.median(np.abs(design @ figures / ms - 1).tolist())
    start_ms, peer_ms, wire_factor, host_ns = (round(float(figure), 4) for figure in figures)
    return LinkModel(start_ms, peer_ms, wire_factor, host_ns, cpu_tag(), round(error, 4), len(ms))


def main() -> None:
    """Time exchanges, fit the model, print both, and write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, action="append", help="Mbit per second; default 200, 500, 1000 and 2000")
    parser.add_argument("--devices", type=int, action="append", help="default 2, 3 and 4")
    parser.add_argument("-o", "--out", type=Path, help="file of the model")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--namespace", help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        print(json.dumps(rank_main(given.rank, given.devices[0], given.rendezvous, given.namespace)))
        return
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    exchanges = []
    for devices in given.devices or (2, 3, 4):
        for rate in given.rate or (200, 500, 1000, 2000):
            exchanges += time_exchanges(devices, rate)
            print(f"{devices} devices at {rate} Mbit/s: {len(exchanges)} exchanges", flush=True)
    model = fit(exchanges)
    for exchange in exchanges:
        print(json.dumps(exchange))
    print(model.to_json(indent=2))
    if given.out:
        given.out.write_text(model.to_json(indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
