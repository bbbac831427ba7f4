"""A DLRM under TorchRec, trained with the plan of its own planner and with one of ours.

    pip install 'shardgym[cpu]' tensordict pyre-extensions && pip install --no-deps torchrec==1.8.0
    python examples/torchrec_dlrm.py                     # two processes, about 20 seconds
    python examples/torchrec_dlrm.py --ranks 4 --steps 40

The tables are those of DLRM-DCNv2, with a thousandth of the rows; ids follow a Zipf law. In a script of your own two
lines change: the import, and the planner's name in `make_plans`. Step times on CPUs show that the plans run. They say
nothing about GPUs.
"""

import argparse
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from tabulate import tabulate
from torch import nn
from torch.multiprocessing import start_processes
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import shardgym
from shardgym.tables.ids import draw_bags
from shardgym.torchrec import ShardGymPlanner, from_torchrec, task_from_model, topology_from_torchrec

BATCH_SIZE = 256  # of one rank
DIM = 64
DENSE_FEATURES = 13
NAMES = ("TorchRec", "ShardGym")

#: Ids per sample and rows of DLRM-DCNv2, rows divided by 1,000.
TABLES = [
    shardgym.EmbeddingTable(
        table.name, max(4, table.num_embeddings // 1000), DIM, table.pooling_factor, shardgym.ZipfIds(1.05)
    )
    for table in shardgym.load_suite("published-v1")[0].tables
]


def make_model() -> nn.Module:
    """A DLRM whose tables take no memory yet; `DistributedModelParallel` makes the shards of each rank."""
    configs = [
        EmbeddingBagConfig(
            name=table.name, num_embeddings=table.num_embeddings, embedding_dim=DIM, feature_names=[table.name]
        )
        for table in TABLES
    ]
    bags = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return DLRMTrain(DLRM(bags, DENSE_FEATURES, dense_arch_layer_sizes=[64, DIM], over_arch_layer_sizes=[64, 1]))


class Batch:
    """Synthetic clicks: the label follows from the dense features."""

    def __init__(self, rank: int, step: int) -> None:
        rng = np.random.default_rng([rank, step])
        bags = [draw_bags(table, BATCH_SIZE, seed=rank, batch=step) for table in TABLES]
        self.dense_features = torch.from_numpy(rng.standard_normal((BATCH_SIZE, DENSE_FEATURES), dtype=np.float32))
        self.labels = (self.dense_features.sum(dim=1) > 0).int()
        self.sparse_features = KeyedJaggedTensor.from_lengths_sync(
            keys=[table.name for table in TABLES],
            values=torch.from_numpy(np.concatenate([bag.indices for bag in bags])),
            lengths=torch.from_numpy(np.concatenate([bag.lengths for bag in bags])),
        )


def make_topology(ranks: int) -> Topology:
    """The devices as TorchRec describes them; ShardGym takes the same description."""
    return Topology(world_size=ranks, compute_device="cpu", ddr_cap=2**30)


def make_plans(ranks: int, sharders: list) -> dict[str, ShardingPlan]:
    """Both planners, on the first rank, broadcast to all."""
    topology = make_topology(ranks)
    constraints = {
        table.name: ParameterConstraints(
            sharding_types=["table_wise", "column_wise"],
            compute_kernels=["fused"],
            min_partition=16,
            pooling_factors=[table.pooling_factor],
        )
        for table in TABLES
    }
    planners = (EmbeddingShardingPlanner, ShardGymPlanner)
    plans = {}
    for name, planner_class in zip(NAMES, planners, strict=True):
        planner = planner_class(topology=topology, batch_size=BATCH_SIZE, constraints=constraints)
        plans[name] = planner.collective_plan(make_model(), sharders, dist.group.WORLD)
    return plans


def train(rank: int, ranks: int, steps: int, store: Path) -> None:
    """Train one model per plan, in turns, so that what else the machine does meets all of them alike."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(minutes=2)
    )
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.05}
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
    plans = make_plans(ranks, sharders)
    models = {}
    for name, plan in plans.items():
        torch.manual_seed(0)
        models[name] = DistributedModelParallel(make_model(), device=torch.device("cpu"), plan=plan, sharders=sharders)
    optimizers = {
        name: torch.optim.SGD([p for key, p in model.named_parameters() if "embedding_bags" not in key], lr=0.05)
        for name, model in models.items()
    }
    times = torch.zeros(len(models), steps, dtype=torch.float64)
    losses = {name: [] for name in models}
    for step in range(steps):
        batch = Batch(rank, step)
        for number, (name, model) in enumerate(models.items()):
            dist.barrier()
            start = time.perf_counter()
            optimizers[name].zero_grad()
            loss, _ = model(batch)
            loss.backward()  # updates the tables, too
            optimizers[name].step()
            times[number, step] = 1000 * (time.perf_counter() - start)
            losses[name].append(float(loss.detach()))
    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a step takes as long as the slowest rank
    if rank == 0:
        report(plans, ranks, times, losses)
    dist.destroy_process_group()


def report(plans: dict[str, ShardingPlan], ranks: int, times: torch.Tensor, losses: dict[str, list[float]]) -> None:
    """Print what each rank holds, what two costs say of the plans, and what a step took."""
    topology = topology_from_torchrec(make_topology(ranks))
    factors = {table.name: table.pooling_factor for table in TABLES}
    task = task_from_model(make_model(), topology, BATCH_SIZE * ranks, pooling_factors=factors)
    ours = {name: from_torchrec(plan, task) for name, plan in plans.items()}
    rows = []
    for device in range(ranks):
        held = [plan.on(device) for plan in ours.values()]
        rows.append([f"rank {device}", *(f"{len(s)} shards, {sum(x.num_columns for x in s)} columns" for s in held)])
    cut = [sum(n > 1 for n in Counter(s.table for s in plan.shards).values()) for plan in ours.values()]
    rows.append(["tables that are cut", *cut])
    for cost in ("torchrec_rating", "roofline"):
        costs = shardgym.make_cost(cost).evaluate(task, list(ours.values()))
        rows.append([f"{cost}, modelled ms", *(f"{cost.total_ms:.3f}" for cost in costs)])
    # The first steps allocate memory.
    medians = times[:, min(3, times.shape[1] - 1) :].median(dim=1).values
    rows.append(["median step on these CPUs, ms", *(f"{ms:.1f}" for ms in medians.tolist())])
    rows.append(["loss, first and last step", *(f"{values[0]:.4f} {values[-1]:.4f}" for values in losses.values())])
    print(tabulate(rows, ["plan of", *ours], disable_numparse=True))


def main(argv: Sequence[str] | None = None) -> None:
    """Start a process per rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args(argv)
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # it warns of every topology that is made by hand
    # Forked processes have imported TorchRec already, which takes seconds.
    with tempfile.TemporaryDirectory() as folder:
        given = arguments.ranks, arguments.steps, Path(folder) / "store"
        start_processes(train, given, nprocs=arguments.ranks, start_method="fork")


if __name__ == "__main__":
    main()
