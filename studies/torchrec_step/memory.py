"""What fresh memory costs in a step: page faults of version 2 of the measured cost and of TorchRec's step.

    python studies/torchrec_step/memory.py --out DIR [--rounds N]
    python studies/torchrec_step/memory.py --out DIR --report [--json]

DIR is the folder of a finished `studies/torchrec_step/run.py`. A C library returns large blocks to the system when they
are freed. The next ones are new pages then, and the first write to each is a fault of the kernel. glibc stops that for
blocks up to the largest one of at most 32 MiB that the process has freed (`man mallopt`), so it depends on a
process's past, and in a young process on the sizes that a plan brings. All plans of the study run again in both kinds
of steps, with glibc as it is and with memory that stays with the process, by variables that glibc reads.

A row per step and setting: "faults" of a step on the rank that has most, median and standard deviation over plans;
the mean of those while gradients are packed and exchanged; ms of the step, its own "repeat", and its agreement with
TorchRec's step of the study, as "tau_half" of `validity.py`; how long this exchange takes and what it follows, as
`breakdown` in `run.py` says it. What is done is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import numpy as np
import run as torchrec_step
import validity
from tabulate import tabulate

from shardgym import PlanCost, ShardingPlan, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.fbgemm import step
from shardgym.costs.fbgemm.communication import CollectiveGroup
from shardgym.costs.fbgemm.jobs import shard_sets
from shardgym.costs.fbgemm.machine import cpu_tag
from shardgym.files import write_whole

_LARGEST = str(32 * 2**20)  # glibc ignores larger ones
#: Variables of the C library by the name of a memory setting.
MEMORY = {
    "as it is": {},
    "kept": {"MALLOC_MMAP_THRESHOLD_": _LARGEST, "MALLOC_TRIM_THRESHOLD_": str(2**40)},
}
WARMUPS = 2
ITERATIONS = 3
TORCHREC_STEPS = 4
TIMEOUT_S = 120.0


class CountingGroup(CollectiveGroup):
    """Ranks that count page faults.

    Attributes:
        faults: of every job so far by its shard sets, each of shape (D, steps, parts).
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, "cpu", TIMEOUT_S, "faults_rank", step.ENVIRONMENT)
        self.faults: dict[Any, list[Any]] = {}

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """Return the marks of all ranks, and keep the faults."""
        answers = super().ask(messages)
        self.faults.setdefault(messages[0].shard_sets, []).append(np.array([faults for _, faults in answers]))
        return [marks for marks, _ in answers]


def run_steps(folder: Path, rounds: int, seed: int) -> tuple[list[dict[str, Any]], list[list[float]]]:
    """Return version 2's cost of every plan as a record, and its faults by part, those of the rank with most."""
    task = ShardingTask.load(folder / "task.json")
    plans = [ShardingPlan.load(path) for path in validity.read_plans(folder)[1]]
    devices = {n: shard_sets(task, plan) for n, plan in enumerate(plans)}
    group = CountingGroup(task.num_devices)
    effort = {"rounds": rounds, "warmups": WARMUPS, "iterations": ITERATIONS, "first_batch": 0}
    with contextlib.closing(group):
        steps, failed = step.time_steps(group, devices, **effort, seed=seed, rng=random.Random(seed))
    if failed:
        raise SystemExit(next(iter(failed.values())))
    costs = []
    faults = []
    for n in devices:
        per_device = step.phases_of(task, steps[n], links=None, ids_hidden=False).per_device
        costs.append(PlanCost(per_device, "fbgemm", "2", cpu_tag()).to_dict())
        by_round = np.array(group.faults[tuple(devices[n])])  # rounds, devices, steps, parts
        typical = np.median(by_round, axis=2).mean(axis=0)
        faults.append(typical[typical.sum(axis=1).argmax()].tolist())
    return costs, faults


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Run both kinds of steps in this process's memory setting."""
    passes = [run_steps(folder, rounds, seed) for seed in range(validity.PASSES)]
    real = [torchrec_step.real_ms(folder, max(1, rounds // 2), TORCHREC_STEPS, seed) for seed in range(validity.PASSES)]
    return {"costs": [costs for costs, _ in passes], "faults": [faults for _, faults in passes], "real": real}


def stored(folder: Path, name: str) -> Path:
    """Return the file of a memory setting."""
    return folder / f"memory-{name.replace(' ', '-')}.json"


def report(folder: Path) -> list[dict[str, Any]]:
    """Return a row per kind of step and memory setting; none while the study or a measurement is missing."""
    study = torchrec_step.finished(folder)
    if study is None or not all(stored(folder, name).exists() for name in MEMORY):
        return []
    rows = []
    for name in MEMORY:
        done = json.loads(stored(folder, name).read_text())
        passes = [[PlanCost.from_dict(cost) for cost in half] for half in done["costs"]]
        faults = np.array(done["faults"])  # passes, plans, parts
        exchange = {
            row["part"]: row for row in torchrec_step.breakdown(study._replace(costs={**study.costs, "2": passes}))
        }["2, gradient exchange"]
        row = {
            **counted(faults.sum(axis=-1)),
            "of gradients": faults[..., part("pack_gradients") : part("backward")].sum(axis=-1).mean(),
            **agreements(np.array([[cost.total_ms for cost in half] for half in passes]), study.real),
            "exchange ms": exchange["ms"],
            **{key: exchange[key] for key in ("sd", "per 100 columns", "per 10 lookups")},
        }
        rows.append({"step": "fbgemm 2", "freed memory": name, **row})
        real = np.array(done["real"])  # passes, (wall, cpu, faults), plans
        rows.append(
            {
                "step": "TorchRec", "freed memory": name, **counted(real[:, 2]),
                "of gradients": None, **agreements(real[:, 0], study.real),
            }
        )  # fmt: skip
    return rows


def part(name: str) -> int:
    """Return the number of a part of version 2's step."""
    return step.PARTS.index(name)


def counted(faults: Floats) -> dict[str, float]:
    """Return median and standard deviation over plans of faults, shape (2, plans)."""
    by_plan = faults.mean(axis=0)
    return {"faults": float(np.median(by_plan)), "faults sd": float(by_plan.std())}


def agreements(own: Floats, real: Floats) -> dict[str, float]:
    """Return the level, the agreement of both passes, and that with both halves of the study's real step by clock."""
    found = {"ms": float(own.mean()), "repeat": validity.tau(own[0], own[1])}
    for number, clock in enumerate(torchrec_step.CLOCKS):
        found[f"tau {clock}"] = float(np.mean([validity.tau(a, b) for a in own for b in real[:, number]]))
    return found


def main() -> None:
    """Measure what is missing, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--rounds", type=int, default=7, help="of version 2; TorchRec's step has half (%(default)s)")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", choices=MEMORY, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        write_whole(stored(given.out, given.measure), json.dumps(measure(given.out, given.rounds)))
        return
    for name, variables in () if given.report else MEMORY.items():
        if not stored(given.out, name).exists():
            command = [sys.executable, __file__, "--out", str(given.out), "--rounds", str(given.rounds)]
            # The C library reads its variables when a program starts; ranks look for their module on the path.
            path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, **variables, "PYTHONPATH": path}
            subprocess.run([*command, "--measure", name], env=environment, check=True)
    rows = report(given.out)
    print(
        json.dumps(rows, indent=2) if given.json else tabulate(rows, headers="keys", floatfmt=".2f", tablefmt="github")
    )


if __name__ == "__main__":
    main()
