"""Fit the link model of the measured cost to all-to-alls between network namespaces with links of known rates.

    sudo python tools/fit_link_model.py [--rate MBIT ...] [--devices N ...] [-o FILE]

Every device becomes a process with a link of its own (`shardgym.costs.fbgemm.namespaces`). Times are of the
measured cost's all-to-alls, started at once, the slowest device deciding. What was fitted is in
`shardgym/costs/link_model.json`. It takes root, `ip` and `tc`; without them the tool says so and fits nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.costs.fbgemm.namespaces import BURST_BYTES, INTERFACE, join_network, why_not
from shardgym.costs.link_model import LinkModel
from shardgym.costs.links import samples_per_device
from shardgym.machine import cpu_tag

_ITERATIONS = 5
_WARMUPS = 1
_LEAD_S = 0.003
_LINKS_S = 60.0
#: Columns of each device, as shares of the widest: balanced, one or two wide ones, and one that has everything.
_SHAPES = ((1.0,), (1.0, 0.5, 0.25, 0.25), (1.0, 0.2, 0.2, 0.2), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0))
_WIDEST = (4, 64, 128, 256, 512)
_BATCH = 2048


def cases(devices: int) -> list[tuple[list[int], bool]]:
    """Return the columns of all devices and whether gradients go back, for every exchange to time.

    Forward, the widest device sends most; backward, and where ids are exchanged, it receives most.
    """
    shapes = [[shape[d % len(shape)] for d in range(devices)] for shape in _SHAPES]
    return [
        ([4 * round(widest * share / 4) for share in shape], backward)
        for widest in _WIDEST for shape in shapes for backward in (False, True)
    ]  # fmt: skip


def rank_main(rank: int, devices: int, rate_mbit: int, folder: Path) -> list[list[float]]:
    """Time all exchanges from behind a link; returns seconds from the common start, by case and iteration."""
    join_network(rank, devices, rate_mbit * 1e6 / 8, folder, _LINKS_S)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    import torch
    import torch.distributed as dist

    from shardgym.costs.fbgemm.all_to_all import AllToAll, exchange

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=devices)
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
            exchange(AllToAll(incoming, outgoing, receive, send))
            seconds.append(time.perf_counter() - float(start))
        times.append(seconds[_WARMUPS:])
    dist.destroy_process_group()
    return times


def time_exchanges(devices: int, rate_mbit: int) -> list[dict[str, Any]]:
    """Return the exchanges of `cases` with the median of the slowest device's time in ms."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--devices", str(devices), "--rate", str(rate_mbit), "--folder", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(devices)
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
                sent.sum() / 1e6,
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
    parser.add_argument("--devices", type=int, action="append", help="default 2, 4 and 8")
    parser.add_argument("-o", "--out", type=Path, help="file of the model")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        print(json.dumps(rank_main(given.rank, given.devices[0], given.rate[0], given.folder)))
        return
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    exchanges = []
    for devices in given.devices or (2, 4, 8):
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
