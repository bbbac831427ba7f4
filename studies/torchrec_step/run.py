"""How well cost models agree with real TorchRec training: a small DLRM under many plans, on two processes.

    python studies/torchrec_step/run.py --out DIR [--minutes N] [--task SUITE/INDEX] [--plans N] [--rounds N] [--steps N]
    python studies/torchrec_step/run.py --out DIR --report [--parts] [--json]

The tables are those of a task of a suite, put on two devices; dense features, a concatenation and two small networks
make it a DLRM. Plans are chosen as for `benchmarks/validity.py`: searched, greedy, random, cut, and neighbours of the
best. `DistributedModelParallel` trains each of them over gloo. All plans are trained in every round, in random order;
a round builds each model anew.

A step takes as long as its slowest rank: "wall" by the clock, "cpu" by the processor time of a rank's process, which
other work on the machine changes less. Launches are halved into two passes; their agreement limits what any cost can
reach. `agreement` in `validity.py` explains all columns but three: "preferred" counts pairs of plans that the cost
prefers by more than 5 %, "reversed" those of them in which the real step is slower in both passes, "worst" is how much
slower it is in the worst of these, by the mean of both.

--parts says what the measured costs consist of, and what each part follows: columns, lookups or cuts.

Whatever is done is kept in DIR, so a run that was stopped, or that reached --minutes, goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import numpy as np
import torch
import torch.distributed as dist
import validity
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from tabulate import tabulate
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym import PlanCost, ShardingPlan, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.links import pooled_widths
from shardgym.ids import draw_bags
from shardgym.torchrec import model_from_task, to_torchrec

RANKS = 2
LAUNCHES = 4
CLOCKS = ("wall", "cpu")
#: Different batches that steps take in turn.
BATCHES = 3
#: Of an evaluation of the measured cost.
MEASURED_ROUNDS = 7
WARMUPS = 2
DENSE_FEATURES = 13
HIDDEN = 64
PREDICTED = {**validity.PREDICTED, "torchrec_rating": ("torchrec_rating", {"compute_device": "cpu"})}
#: What a cost has to prefer a plan by for the preference to be held against the real step.
PREFERENCE = 0.05


class Dlrm(nn.Module):
    """Pooled values and transformed dense features, concatenated, into a network with one output."""

    def __init__(self, task: ShardingTask) -> None:
        super().__init__()
        self.names = [table.name for table in task.tables]
        self.tables = model_from_task(task)
        self.bottom = nn.Sequential(nn.Linear(DENSE_FEATURES, HIDDEN), nn.ReLU())
        width = sum(table.embedding_dim for table in task.tables) + HIDDEN
        self.top = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """Return one number per sample."""
        pooled = self.tables(sparse).to_dict()
        values: torch.Tensor = self.top(torch.cat([self.bottom(dense), *(pooled[name] for name in self.names)], dim=1))
        return values.squeeze(1)


def make_batches(
    task: ShardingTask, rank: int, seed: int
) -> list[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """Return dense features, ids and labels of a rank's share of the batch."""
    samples = task.batch_size // RANKS
    generator = torch.Generator().manual_seed(seed * RANKS + rank)
    batches = []
    for number in range(BATCHES):
        bags = [draw_bags(table, samples, seed=seed * RANKS + rank, batch=number) for table in task.tables]
        ids = KeyedJaggedTensor.from_lengths_sync(
            [table.name for table in task.tables],
            torch.from_numpy(np.concatenate([bag.indices for bag in bags])),
            torch.from_numpy(np.concatenate([bag.lengths for bag in bags])),
        )
        dense = torch.randn(samples, DENSE_FEATURES, generator=generator)
        batches.append((dense, ids, (dense.sum(dim=1) > 0).float()))
    return batches


def train(
    rank: int, task: ShardingTask, plans: list[ShardingPlan], rounds: int, steps: int, seed: int, store: Path
) -> None:
    """Train every plan in every round; the first rank writes what `_round` returns per plan, shape (3, plans)."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(minutes=5)
    )
    batches = make_batches(task, rank, seed)
    taken: list[list[list[float]]] = [[] for _ in plans]
    order = list(range(len(plans)))
    shuffle = random.Random(seed)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for number in order:
            times = _round(task, plans[number], batches, steps)
            dist.all_reduce(times, op=dist.ReduceOp.MAX)  # the slowest rank of each step
            taken[number].append(times.median(dim=1).values.tolist())
    if rank == 0:
        medians = [[statistics.median(values) for values in zip(*by_round, strict=True)] for by_round in taken]
        store.with_name("times.json").write_text(json.dumps(np.array(medians).T.tolist()))
    dist.destroy_process_group()


def _round(task: ShardingTask, plan: ShardingPlan, batches: list[Any], steps: int) -> torch.Tensor:
    """Build the model and return its steps, shape (3, steps): ms by the clock and by processor time, page faults."""
    torch.manual_seed(0)
    model = Dlrm(task)
    sharding_plan = TorchRecPlan({"tables": to_torchrec(plan, task, device_type="cpu").plan[""]})
    sharder = EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.01})
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=sharding_plan, sharders=[sharder])
    dense = [p for name, p in sharded.named_parameters() if "embedding_bags" not in name]
    optimizer = torch.optim.SGD(dense, lr=0.01)
    loss = nn.BCEWithLogitsLoss()
    times = torch.zeros(3, steps, dtype=torch.float64)
    for step in range(-WARMUPS, steps):
        features, ids, labels = batches[step % BATCHES]
        dist.barrier()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss(sharded(features, ids), labels).backward()
        optimizer.step()
        if step >= 0:
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            times[:, step] = torch.tensor([1000 * wall, 1000 * cpu, faults])
    return times


def real_ms(folder: Path, rounds: int, steps: int, launch: int) -> list[list[float]]:
    """Train all plans in new processes; returns wall ms, cpu ms and page faults of a step, each per plan."""
    _, paths = validity.read_plans(folder)
    task = ShardingTask.load(folder / "task.json")
    plans = [ShardingPlan.load(path) for path in paths]
    # Forked processes have imported TorchRec already, which takes seconds.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) / "store"
        processes = [
            context.Process(target=train, args=(rank, task, plans, rounds, steps, launch, store))
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a rank ended before its time; what it printed says why")
        times: list[list[float]] = json.loads(store.with_name("times.json").read_text())
    return times


def units(folder: Path, rounds: int, steps: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the parts of the study in order: launches of the training, and between them both measured costs."""
    for launch in range(LAUNCHES):
        yield f"real/{launch}", lambda n=launch: real_ms(folder, rounds, steps, n)
        if launch % 2 == 0:
            for version in validity.MEASURED:
                turn = launch // 2
                measure = functools.partial(validity.measured_costs, folder, MEASURED_ROUNDS, version, turn)
                yield f"fbgemm {version}/{turn}", measure


class Study(NamedTuple):
    """What a finished study measured.

    Attributes:
        task: on two devices.
        plans: of the task.
        real: ms of TorchRec's step in both passes by wall clock and processor time, shape (2, 2, plans).
        costs: as `validity.stored_costs` returns them.
    """

    task: ShardingTask
    plans: list[ShardingPlan]
    real: Floats
    costs: dict[str, list[list[PlanCost]]]


def finished(folder: Path) -> Study | None:
    """Return the study, None while a part of it is missing."""
    done = validity.results(folder)
    if not {unit for unit, _ in units(folder, 0, 0)} <= done.keys():
        return None
    plans = [ShardingPlan.load(path) for path in validity.read_plans(folder)[1]]
    launches = np.array([done[f"real/{n}"][: len(CLOCKS)] for n in range(LAUNCHES)])
    real = launches.reshape(validity.PASSES, -1, len(CLOCKS), len(plans)).mean(axis=1)
    return Study(ShardingTask.load(folder / "task.json"), plans, real, validity.stored_costs(done))


def report(study: Study) -> list[dict[str, Any]]:
    """Return a row per way of timing the real step and per cost."""
    costs = validity.measured_totals(study.costs)
    costs |= validity.predicted_totals(PREDICTED, study.task, study.plans)
    rows = []
    for number, clock in enumerate(CLOCKS):
        truth = study.real[:, number]
        for name, own in {"the real step": truth, **costs}.items():
            row = {**validity.agreement(own, truth), **reversals(own, truth)}
            rows.append({"step by": clock, "cost": name, "plans": len(study.plans), **row})
    return rows


def breakdown(study: Study) -> list[dict[str, Any]]:
    """Return a row for the real step by each clock, for each measured cost, and for each of its parts.

    Work is that of the device that works longest. An exchange is as long as for the device that enters it last, which
    waits for nobody. The three columns that begin with "per" are a least-squares fit of the ms.

    Returns:
        ms, sd: mean and standard deviation over plans.
        repeat: correlation between the passes.
        tau wall, tau cpu: Kendall's tau with the real step.
        per 100 columns: of the device with most of them.
        per 10 lookups: per sample, of the device with most of them.
        per cut: for each shard more than there are tables.
    """
    timed = {f"the real step, {clock}": study.real[:, number] for number, clock in enumerate(CLOCKS)}
    totals = validity.measured_totals(study.costs)
    for version, passes in study.costs.items():
        timed[f"fbgemm {version}"] = totals[f"fbgemm {version}"]
        timed |= {f"{version}, {part}": ms for part, ms in parts(passes).items()}
    loads = []
    for plan in study.plans:
        on_device = [plan.on(device) for device in range(study.task.num_devices)]
        lookups = [sum(study.task.table(s.table).pooling_factor for s in shards) for shards in on_device]
        cuts = len(plan.shards) - study.task.num_tables
        loads.append([1.0, pooled_widths(study.task, plan).max() / 100, max(lookups) / 10, cuts])
    rows = []
    for name, by_pass in timed.items():
        ms = by_pass.mean(axis=0)
        slopes = np.linalg.lstsq(np.array(loads), ms, rcond=None)[0][1:].tolist()
        row: dict[str, Any] = {"part": name, "ms": float(ms.mean()), "sd": float(ms.std())}
        row["repeat"] = float(np.corrcoef(by_pass)[0, 1]) if by_pass.std(axis=1).all() else 0.0
        row |= {f"tau {clock}": validity.tau(ms, study.real[:, n].mean(axis=0)) for n, clock in enumerate(CLOCKS)}
        rows.append(row | dict(zip(("per 100 columns", "per 10 lookups", "per cut"), slopes, strict=True)))
    return rows


def parts(passes: list[list[PlanCost]]) -> dict[str, Floats]:
    """Return the ms of a step's parts in both passes, shape (2, plans); how they are taken is said at `breakdown`."""
    phases = np.array([[cost.per_device for cost in half] for half in passes])
    found = {
        "forward": phases[..., 1].max(axis=-1),
        "output exchange": phases[..., 2].min(axis=-1),
        "gradient exchange": phases[..., 3].min(axis=-1),
        "backward": phases[..., 4].max(axis=-1),
    }
    if phases[..., 0].any():
        found["ids"] = phases[..., 0].max(axis=-1)
    return found


def reversals(own: Floats, real: Floats) -> dict[str, float]:
    """Count pairs that a cost prefers by more than `PREFERENCE`, and those that are slower in both passes.

    "worst" is how much slower the preferred plan of such a pair is at most, as a share; 0 without one.
    """
    mean, truth = own.mean(axis=0), real.mean(axis=0)
    preferred = [(a, b) for a, b in itertools.permutations(range(len(mean)), 2) if mean[a] < (1 - PREFERENCE) * mean[b]]
    slower = [float(truth[a] / truth[b] - 1) for a, b in preferred if (real[:, a] > real[:, b]).all()]
    return {"preferred": len(preferred), "reversed": len(slower), "worst": max(slower, default=0.0)}


def main() -> None:
    """Go on with the study, or report on what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--minutes", type=float, default=25.0, help="start nothing after so many (%(default)s)")
    parser.add_argument("--task", default="quick-v1/0", metavar="SUITE/INDEX", help="(%(default)s)")
    parser.add_argument("--plans", type=int, default=32, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="of each launch (%(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="of each round, after two that do not count (%(default)s)")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--parts", action="store_true", help="print what measured costs consist of, not agreement")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.report:
        validity.prepare(given.out, given.task, given.plans, RANKS, links=0)
        deadline = time.monotonic() + 60 * given.minutes
        validity.study(given.out, units(given.out, given.rounds, given.steps), deadline)
    found = finished(given.out)
    tables = {"step": report(found), "parts": breakdown(found)} if found else {"step": [], "parts": []}
    rows = tables["parts" if given.parts else "step"]
    print(
        json.dumps(rows, indent=2) if given.json else tabulate(rows, headers="keys", floatfmt=".2f", tablefmt="github")
    )


if __name__ == "__main__":
    main()
