"""What gloo's all-to-all takes between links of known rate, and what sends and receives of the same data take.

    sudo python studies/gloo_all_to_all/run.py --out studies/gloo_all_to_all/exchanges.json.xz
    python studies/gloo_all_to_all/run.py --report studies/gloo_all_to_all/exchanges.json.xz
    python studies/gloo_all_to_all/run.py --boards VERSION

Devices have random widths and enter at random times, as in steps. Each exchange runs five times each way, the two ways in
turns. --boards needs no root: it says how costs would rank the plans of the boards by a version of `fbgemm` if some of
their phases were what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import nnls
from scipy.stats import kendalltau
from tabulate import tabulate

BATCH = 8192
RATE = 0.25e9
DEVICES = (2, 4, 8)
CASES = 20
REPEATS = 5
WAYS = ("gloo's all-to-all", "sends and receives")
SUITES = ("quick-v1", "dlrm4-v2", "dlrm8-v2", "wide8-v2", "tight4-v2", "tight8-v2", "hetero4-v2")
#: Bytes that a link lets pass at once, see `shardgym.costs.fbgemm.namespaces`.
BURST = 128 * 1024
CLOSE = 1.05


def cases(devices: int) -> list[tuple[list[int], bool, list[float]]]:
    """Return widths, whether gradients go back, and ms at which devices enter, of every exchange."""
    rng = np.random.default_rng(devices)
    found = []
    for _ in range(CASES):
        spread = np.exp(rng.uniform(np.log(0.5), np.log(50)))
        shares = rng.dirichlet([spread] * devices)
        widths = (4 * np.round(shares * rng.uniform(60, 350) * devices / 4)).astype(int)
        enter = rng.uniform(0, 1, devices) * rng.choice([0, 0, 10, 30])
        enter -= enter.min()
        found += [(widths.tolist(), backward, enter.tolist()) for backward in (False, True)]
    return found


def counts_of(devices: int, widths: list[int], backward: bool) -> np.ndarray:
    """Return the values that each device (row) sends to each (column)."""
    samples = np.array([len(part) for part in np.array_split(np.arange(BATCH), devices)])
    counts = np.outer(widths, samples)
    return counts.T if backward else counts


def rank_main(rank: int, devices: int, folder: str) -> None:
    """Run all exchanges on one rank; prints ms from the common start to the end, by case, repeat and way."""
    from shardgym.costs.fbgemm.namespaces import INTERFACE, join_network

    join_network(rank, devices, RATE, Path(folder), 60.0)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=devices)
    world = dist.group.WORLD
    before = [(rank - distance) % devices for distance in range(1, devices)]

    def all_to_all(received, sent, counts_from, counts_to) -> None:
        dist.all_to_all_single(received, sent, counts_from, counts_to)

    def sends_and_receives(received, sent, counts_from, counts_to) -> None:
        parts, own = received.split(counts_from), sent.split(counts_to)
        works = [world.recv([parts[peer]], peer, 0) for peer in before if counts_from[peer]]
        works += [world.send([own[peer]], peer, 0) for peer in reversed(before) if counts_to[peer]]
        parts[rank].copy_(own[rank])
        for work in works:
            work.wait()

    times = []
    for widths, backward, enter in cases(devices):
        counts = counts_of(devices, widths, backward)
        counts_to, counts_from = counts[rank].tolist(), counts[:, rank].tolist()
        sent, received = torch.ones(sum(counts_to)), torch.ones(sum(counts_from))
        times.append([])
        for repeat in range(1 + REPEATS):
            both = []
            for run in (all_to_all, sends_and_receives):
                start = torch.tensor([time.perf_counter() + 0.003], dtype=torch.float64)
                dist.all_reduce(start, op=dist.ReduceOp.MAX)
                time.sleep(max(0.0, float(start) + enter[rank] / 1e3 - time.perf_counter()))
                run(received, sent, counts_from, counts_to)
                both.append(round(1e3 * (time.perf_counter() - float(start)), 3))
                dist.barrier()
            if repeat:
                times[-1].append(both)
    print(json.dumps(times))
    dist.destroy_process_group()


def measure(out: Path) -> None:
    """Run all exchanges and keep the times of all ranks."""
    found = {}
    for devices in DEVICES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--folder", folder, "--devices", str(devices), "--rank"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            ranks = [
                subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
                for rank in range(devices)
            ]
            outputs = [rank.communicate()[0] for rank in ranks]
        found[str(devices)] = [json.loads(output.splitlines()[-1]) for output in outputs]
        print(f"{devices} devices done", flush=True)
    out.write_bytes(lzma.compress(json.dumps(found).encode()))


def report(path: Path) -> None:
    """Print how far each way repeats itself, and how far the bytes of the busiest device explain it."""
    found = json.loads(lzma.decompress(path.read_bytes()))
    rows = []
    for way, name in enumerate(WAYS):
        amounts, slowest, spread, of_devices, over = [], [], [], [], []
        for key, answers in found.items():
            devices = int(key)
            ms = np.array(answers)[..., way].max(axis=0)
            for (widths, backward, enter), repeats in zip(cases(devices), ms, strict=True):
                sent = 4 * counts_of(devices, widths, backward).astype(float)
                np.fill_diagonal(sent, 0)
                wire_ms = 1e3 / RATE * np.maximum(sent.sum(axis=1), sent.sum(axis=0))
                ideal_ms = (np.array(enter) + np.maximum(0, wire_ms - 1e3 / RATE * BURST)).max()
                slowest.append(np.median(repeats))
                spread.append(repeats.std(ddof=1) / repeats.mean())
                over.append(np.median(repeats) / max(ideal_ms, 1.0))
                amounts.append([1.0, devices - 1, ideal_ms, sent.sum() / 1e6])
                of_devices.append(devices)
        design, took = np.array(amounts), np.array(slowest)
        fitted = design @ nnls(design / took[:, None], np.ones(len(took)))[0]
        for devices in DEVICES:
            chosen = np.array(of_devices) == devices
            error = fitted[chosen] / took[chosen] - 1
            rows.append({
                "exchange": name, "devices": devices,
                "time over the links' own": np.array(over)[chosen].mean(), "least": np.array(over)[chosen].min(),
                "most": np.array(over)[chosen].max(), "spread of repeats": np.mean(np.array(spread)[chosen]),
                "error of a fit": error.std(),
            })  # fmt: skip
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".3f"))


def boards(version: str) -> None:
    """Print how costs rank the plans of the measured boards, with phases replaced by what was measured.

    Plans that a cost does not price are left out for all.
    """
    import shardgym

    tasks = []
    for suite in SUITES:
        problems = shardgym.load_suite(suite)
        plans = defaultdict(dict)
        for line in lzma.open(f"leaderboards/{suite}-fbgemm/records.jsonl.xz", "rt"):
            record = json.loads(line)
            if record["status"] == "ok" and record["cost"]["version"] == version:
                plan = shardgym.ShardingPlan.from_dict(record["plan"])
                plans[record["task_index"]].setdefault(plan.to_json(), (plan, np.array(record["cost"]["per_device"])))
        for number, of_task in plans.items():
            costs = shardgym.make_cost("simulator").evaluate(problems[number], [plan for plan, _ in of_task.values()])
            priced = [both for both, cost in zip(of_task.values(), costs, strict=True) if cost.feasible]
            if len(priced) > 2:
                tasks.append((problems[number], *zip(*priced, strict=True)))
    print(f"{len(tasks)} tasks")
    rows = []
    for name, settings in (("simulator", {"role": "judge"}), ("simulator", {}), ("roofline", {})):
        cost = shardgym.make_cost(name, **settings)
        predicted = [[c.per_device for c in cost.evaluate(task, list(plans))] for task, plans, _ in tasks]
        for label, phases in (("", []), ("compute", [1, 4]), ("exchanges", [2, 3]), ("exchanges and ids", [0, 2, 3])):
            taus, right = [], []
            for (_, _, measured), guesses in zip(tasks, predicted, strict=True):
                mixed = np.array(guesses)
                mixed[..., phases] = np.array(measured)[..., phases]
                guess, real = (x.sum(axis=2).max(axis=1) for x in (mixed, np.array(measured)))
                taus.append(kendalltau(guess, real).statistic)
                right += [
                    (guess[a] - guess[b]) * (real[a] - real[b]) > 0
                    for a, b in itertools.combinations(range(len(real)), 2)
                    if max(real[a], real[b]) < CLOSE * min(real[a], real[b])
                ]
            rows.append({
                "cost": " ".join([name, *settings.values()]), "phases as measured": label,
                "tau": np.nanmean(taus), "close pairs right": np.mean(right),
            })  # fmt: skip
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f"))


def main() -> None:
    """Measure, report, or look at boards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="measure, and write the times to this file")
    parser.add_argument("--report", type=Path, help="file of an earlier run")
    parser.add_argument("--boards", metavar="VERSION", help="of the measured cost")
    for name, of_type in (("--rank", int), ("--devices", int), ("--folder", str)):
        parser.add_argument(name, type=of_type, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank_main(given.rank, given.devices, given.folder)
    elif given.boards:
        boards(given.boards)
    else:
        if given.out:
            measure(given.out)
        report(given.out or given.report)


if __name__ == "__main__":
    main()
