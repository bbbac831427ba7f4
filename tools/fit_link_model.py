"""Fit the link model of the measured cost to exchanges between network namespaces.

    sudo python tools/fit_link_model.py [--devices N ...] [--seed S] [--socket-bytes N] [--exchanges FILE] [-o FILE]

Every device becomes a process with links of its own, as in measured steps (`shardgym.costs.fbgemm.namespaces`).
Exchanges are of the kinds that a step has, of random plans, and devices enter them at different times. The model is
fitted to the ends of one half of them, when measured steps let all devices leave, and tested on the other half. The
fitted model is `shardgym/costs/link_model.json`. The tool needs root, `ip` and `tc`; without them it says so and fits
nothing.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass
from scipy.optimize import least_squares

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.namespaces import DILATION, INTERFACE, SOCKET_BYTES, ShapedLinks, join_network, why_not
from shardgym.costs.link_model import LinkModel
from shardgym.costs.links import samples_per_device
from shardgym.machine import cpu_tag
from shardgym.tasks.topology import Topology

Kind = Literal["ids", "outputs", "gradients", "sums", "sum gradients", "replicas"]

KINDS: tuple[Kind, ...] = get_args(Kind)
_ITERATIONS = 5
_WARMUPS = 1
_LEAD_S = 0.003
_LINKS_S = 60.0
#: Bytes per second inside of a domain, and between domains.
_RATES = ((0.25e9, 0.25e9), (0.125e9, 0.125e9), (0.05e9, 0.05e9), (0.25e9, 0.0625e9))
_PER_RATE = 48


@dataclass
class Exchange:
    """An exchange of D devices; times are in ms of the task's links."""

    kind: Kind
    #: Rates of links inside of a domain and between domains, in bytes per second.
    rates: tuple[float, float]
    domain_size: int
    #: What each device (row) sends to each (column), shape (D, D); for "replicas", in each of their two exchanges.
    sent_bytes: list[list[int]]
    #: When devices enter, the first one at 0, shape (D,).
    entry_ms: list[float]
    #: When each device finished, shape (D,); empty before it was timed.
    exit_ms: list[float]

    @property
    def topology(self) -> Topology:
        """Return the devices and links, without latency."""
        return Topology(
            num_devices=len(self.sent_bytes), memory_bytes=1, fast_domain_size=self.domain_size,
            intra_bandwidth=self.rates[0], inter_bandwidth=self.rates[1], intra_latency_ms=0, inter_latency_ms=0,
        )  # fmt: skip


def draw(kind: Kind, devices: int, rates: tuple[float, float], rng: np.random.Generator) -> Exchange:
    """Return an exchange as plans have them: unbalanced, and entered by devices that have worked differently long."""
    batch_size = int(rng.choice([2048, 8192]))
    samples = samples_per_device(batch_size, devices)
    columns = rng.choice([16, 64, 160]) * rng.lognormal(0, rng.choice([0.2, 0.6, 1.0]), devices)
    widths = 4 * np.ceil(columns / 4)
    widths[rng.random(devices) < 0.1] = 0
    widths[rng.integers(devices)] += 4  # some device has columns
    if kind == "ids":
        sent = 8 * np.outer(samples, np.ceil(widths * rng.uniform(0.1, 1)))
    elif kind in ("outputs", "gradients"):
        sent = 4 * np.outer(widths, samples)
        sent = sent.T if kind == "gradients" else sent
    else:  # gloo gathers equal parts, those of the most samples
        sent = np.full((devices, devices), 4 * int(widths.mean() + 1) * samples[0])
    domain_size = devices if rates[0] == rates[1] else max(devices // 2, 1)
    found = Exchange(kind, rates, domain_size, sent.astype(np.int64).tolist(), [0.0] * devices, [])
    alone = LinkModel(0, 0, 1, "none", 0, 0, 0).busy_ms(found.topology, np.array(found.sent_bytes)).max()
    entry_ms = rng.uniform(0, 1, devices) * alone * rng.choice([0, 0.1, 0.3, 1])
    found.entry_ms = (entry_ms - entry_ms.min()).tolist()
    return found


def rank_main(rank: int, folder: Path, socket_bytes: int) -> list[list[float]]:
    """Run the exchanges in `folder` behind links of their rates; returns seconds from the start, by exchange."""
    exchanges = TypeAdapter(list[Exchange]).validate_json((folder / "exchanges.json").read_text(encoding="ascii"))
    links = ShapedLinks.of(exchanges[0].topology, dilation=DILATION, socket_bytes=socket_bytes)
    join_network(rank, links, folder, _LINKS_S)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=links.world_size)
    times = []
    for exchange in exchanges:
        run = _runner(exchange, rank)
        seconds = []
        for _ in range(_WARMUPS + _ITERATIONS):
            start = torch.tensor([time.perf_counter() + _LEAD_S], dtype=torch.float64)
            dist.all_reduce(start, op=dist.ReduceOp.MAX)
            begin_s = float(start)
            time.sleep(max(0.0, begin_s + DILATION * exchange.entry_ms[rank] / 1e3 - time.perf_counter()))
            run()
            seconds.append((time.perf_counter() - begin_s) / DILATION)
            dist.all_reduce(start)  # all have finished
        times.append(seconds[_WARMUPS:])
    dist.destroy_process_group()
    return times


def _runner(exchange: Exchange, rank: int) -> Callable[[], object]:
    """Return a function that runs a rank's side of an exchange, as measured steps do (`plan_on_rank.py`)."""
    import torch
    import torch.distributed as dist

    from shardgym.costs.fbgemm.unpooled_rows import AllToAll
    from shardgym.costs.fbgemm.unpooled_rows import exchange as all_to_all

    sent_bytes = np.array(exchange.sent_bytes)
    counts_to = (sent_bytes[rank] // 4).tolist()
    counts_from = (sent_bytes[:, rank] // 4).tolist()
    outgoing = torch.ones(sum(counts_to))
    if exchange.kind == "replicas":
        return lambda: dist.all_reduce(outgoing)
    incoming = torch.empty(sum(counts_from))
    if exchange.kind == "sum gradients":
        return lambda: dist.all_gather_into_tensor(incoming, outgoing[: counts_to[rank]])
    return lambda: all_to_all(AllToAll(incoming, outgoing, counts_from, counts_to))


def time_exchanges(exchanges: Sequence[Exchange], socket_bytes: int) -> None:
    """Set when the devices of each exchange leave, as medians; all have the same devices and links."""
    with tempfile.TemporaryDirectory() as folder:
        text = TypeAdapter(list[Exchange]).dump_json(list(exchanges))
        Path(folder, "exchanges.json").write_bytes(text)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        arguments = ["--folder", folder, "--socket-bytes", str(socket_bytes)]
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), *arguments],
                stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(len(exchanges[0].sent_bytes))
        ]  # fmt: skip
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{len(ranks)} devices at {exchanges[0].rates} bytes/s: a rank failed")
    seconds = np.median([json.loads(output.splitlines()[-1]) for output in outputs], axis=2)
    for exchange, of_devices in zip(exchanges, seconds.T, strict=True):
        exchange.exit_ms = np.round(of_devices * 1e3, 4).tolist()


def predicted_ms(links: LinkModel, exchange: Exchange) -> float:
    """Return when the exchange is over by the model."""
    exit_ms = np.array(exchange.entry_ms)
    for _ in range(2 if exchange.kind == "replicas" else 1):
        exit_ms = links.exit_ms(exchange.topology, exit_ms, np.array(exchange.sent_bytes))
    return float(exit_ms.max())


def errors(links: LinkModel, exchanges: Sequence[Exchange]) -> Floats:
    """Return relative errors of when exchanges are over, counted from when the first device enters."""
    return np.array([predicted_ms(links, e) / max(e.exit_ms) - 1 for e in exchanges])


def fit(exchanges: Sequence[Exchange]) -> LinkModel:
    """Fit the model to every other exchange of each kind, and tell its errors on the others."""
    fitted = [e for kind in KINDS for e in [e for e in exchanges if e.kind == kind][::2]]
    others = [e for kind in KINDS for e in [e for e in exchanges if e.kind == kind][1::2]]

    def model(figures: Sequence[float], error: float = 0.0, worst_tenth: float = 0.0) -> LinkModel:
        start_ms, peer_ms, wire_factor = (round(float(figure), 4) for figure in figures)
        return LinkModel(start_ms, peer_ms, wire_factor, cpu_tag(), error, worst_tenth, len(fitted))

    found = least_squares(
        lambda figures: errors(model(figures), fitted), [0.1, 0.1, 1.0], bounds=(0, np.inf), loss="soft_l1",
        f_scale=0.05, diff_step=1e-2,
    ).x  # fmt: skip
    off = np.abs(errors(model(found), others))
    return model(found, round(float(np.median(off)), 4), round(float(np.quantile(off, 0.9)), 4))


def main() -> None:
    """Time exchanges, or read them, fit the model, print and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, action="append", help="default 2, 4 and 8")
    parser.add_argument("--seed", type=int, default=0, help="seed of the exchanges")
    parser.add_argument("--socket-bytes", type=int, default=SOCKET_BYTES, help="size of socket buffers")
    parser.add_argument("--exchanges", type=Path, help="file of timed exchanges: read if it exists, else written")
    parser.add_argument("-o", "--out", type=Path, help="file of the model")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        print(json.dumps(rank_main(given.rank, given.folder, given.socket_bytes)))
        return
    adapter = TypeAdapter(list[Exchange])
    if given.exchanges and given.exchanges.exists():
        exchanges = adapter.validate_json(given.exchanges.read_bytes())
    elif reason := why_not():
        print(f"skipped: {reason}")
        return
    else:
        exchanges = []
        rng = np.random.default_rng(given.seed)
        for devices in given.devices or (2, 4, 8):
            for rates in _RATES:
                # gloo's rings pass from domain to domain over one link, so they are not timed between two kinds.
                kinds = KINDS if rates[0] == rates[1] else KINDS[:4]
                drawn = [draw(kinds[n % len(kinds)], devices, rates, rng) for n in range(_PER_RATE)]
                time_exchanges(drawn, given.socket_bytes)
                exchanges += drawn
                print(f"{devices} devices, links of {rates} bytes/s: {len(exchanges)} exchanges", flush=True)
        if given.exchanges:
            given.exchanges.write_bytes(adapter.dump_json(exchanges))
    model = fit(exchanges)
    print(model.to_json(indent=2))
    if given.out:
        given.out.write_text(model.to_json(indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
