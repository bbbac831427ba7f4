"""What a rank's process takes at most in training steps of a plan: `fbgemm`'s own steps, and TorchRec's."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym import ShardingPlan, ShardingTask
from shardgym.costs.fbgemm.operator import TableIds, cut_rows
from shardgym.costs.fbgemm.plan_on_rank import Domains, Features, PlanOnRank
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.links import samples_per_device
from shardgym.tables.bags import Bags
from shardgym.tables.ids import draw_bags
from shardgym.torchrec import model_from_task, to_torchrec

#: Batches that a plan's steps take in turn; each is there before the steps and while they run.
BATCHES = 2
STEPS = 2
_OPTIMIZERS = {"exact_sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}


class NoClock:
    """Runs exchanges as they come."""

    def work(self, part: str) -> None:
        """Nothing is timed."""

    def exchange(self, part: str, run: Callable[[], object], sent_bytes: Sequence[int]) -> None:
        """Run an exchange."""
        run()


def resident_bytes(field: str) -> int:
    """Return VmRSS, what the process has in memory, or VmHWM, the most that it had since the last `reset_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}: this needs Linux")


def settle() -> None:
    """Give back what is free, as far as the allocator can."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def reset_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def draw(task: ShardingTask, rank: int, number: int) -> list[Bags]:
    """Return the ids of this rank's samples of a batch, by table."""
    samples = samples_per_device(task.batch_size, task.num_devices).tolist()
    own = number * task.num_devices + rank
    return [draw_bags(table, samples[rank], seed=0, batch=own) for table in task.tables]


def fbgemm_steps(task: ShardingTask, plan: ShardingPlan, rank: int, domains: Domains | None) -> Callable[[Any], None]:
    """Return a function that takes a batch through `fbgemm`'s step."""
    job = StepPlan.of(task, plan)
    samples = samples_per_device(task.batch_size, task.num_devices).tolist()
    held = PlanOnRank(job, samples, rank, domains)
    names = {table.name: n for n, table in enumerate(task.tables)}

    def step(batch: list[TableIds]) -> None:
        def of(shards: Any) -> list[TableIds]:
            return [cut_rows(batch[names[s.table.name]], s) for s in shards.shards]

        exchanged = [[ids for part in job.exchanged(d) for ids in of(part)] for d in range(job.num_devices)]
        held.step(Features(exchanged, [ids for part in job.replicated() for ids in of(part)]), NoClock())

    return step


def torchrec_steps(task: ShardingTask, plan: ShardingPlan) -> Callable[[Any], None]:
    """Return a function that takes a batch through `DistributedModelParallel`; FP16 on the wire by TorchRec's codecs."""
    codecs = None
    if task.precision == "fp16":
        codecs = get_qcomm_codecs_registry(QCommsConfig(CommType.FP16, CommType.FP16), device=torch.device("cpu"))
    exported = to_torchrec(plan, task, device_type="cpu").plan[""]
    fused = {"optimizer": _OPTIMIZERS[task.optimizer], "learning_rate": 0.01}
    model = torch.nn.ModuleDict({"tables": model_from_task(task)})
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=TorchRecPlan({"tables": exported}),
        sharders=[EmbeddingBagCollectionSharder(fused_params=fused, qcomm_codecs_registry=codecs)],
    )  # fmt: skip
    tables = sharded.module["tables"]
    copied = [name for name, sharding in exported.items() if sharding.sharding_type == "data_parallel"]
    own = [p for name, p in sharded.named_parameters() if name.split(".")[-2] in copied]
    optimizer = torch.optim.SGD(own, lr=0.01) if own else None

    def step(batch: KeyedJaggedTensor) -> None:
        pooled = tables(batch).values()
        pooled.backward(pooled.detach())
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return step


def batch_for(runner: str, task: ShardingTask, rank: int, number: int) -> Any:
    """Return a batch as a runner's steps take it."""
    bags = draw(task, rank, number)
    if runner == "fbgemm":
        return [TableIds(torch.from_numpy(of.indices), torch.from_numpy(of.lengths)) for of in bags]
    return KeyedJaggedTensor.from_lengths_sync(
        [table.name for table in task.tables],
        torch.from_numpy(np.concatenate([of.indices for of in bags])),
        torch.from_numpy(np.concatenate([of.lengths for of in bags])),
    )


def run_rank(rank: int, task: ShardingTask, plans: list[ShardingPlan], runners: Sequence[str], folder: Path) -> None:
    """Run steps of every plan by every runner.

    A line of a file for each: runner, number of the plan, bytes before the first step, most bytes during steps. That is
    what the process has in memory beyond what it had before the plan's tables and batches.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    ranks = task.num_devices
    os.environ["LOCAL_WORLD_SIZE"] = str(task.topology.fast_domain_size)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
    )
    size = task.topology.fast_domain_size
    domains = Domains.join(size) if size < ranks else None
    rows = []
    for runner in runners:
        # The first plan of each runner is run twice, so that code is in memory before anything is measured.
        for number, plan in [(-1, plans[0]), *enumerate(plans)]:
            settle()
            dist.barrier()
            before = resident_bytes("VmRSS")
            batches = [batch_for(runner, task, rank, n) for n in range(BATCHES)]
            if runner == "fbgemm":
                step = fbgemm_steps(task, plan, rank, domains)
            else:
                step = torchrec_steps(task, plan)
            settle()
            held = resident_bytes("VmRSS") - before
            reset_peak()
            for n in range(STEPS):
                step(batches[n % BATCHES])
            peak = resident_bytes("VmHWM") - before
            if number >= 0:
                rows.append([rank, runner, number, held, peak])
            del step, batches
            dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()
