"""A DLRM under TorchRec, trained with the plan of `ShardGymPlanner`.

    pip install 'shardgym[cpu]' tensordict pyre-extensions && pip install --no-deps torchrec==1.8.0
    torchrun --nproc-per-node 2 examples/torchrec_dlrm.py
    torchrun --nproc-per-node 2 examples/torchrec_dlrm.py --planner torchrec     # by TorchRec's own planner

The tables are those of DLRM-DCNv2, with a thousandth of the rows; ids follow a Zipf law. In a script of your own two
lines change: the import, and the planner's name. Which plan is faster, `shardgym compare` measures.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.types import Topology
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import shardgym
from shardgym.tables.ids import draw_bags
from shardgym.torchrec import ShardGymPlanner

BATCH_SIZE = 256  # of one rank
DIM = 64
DENSE_FEATURES = 13
PLANNERS = {"torchrec": EmbeddingShardingPlanner, "shardgym": ShardGymPlanner}

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


def main(argv: Sequence[str] | None = None) -> None:
    """Plan on the first rank, and train on all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--planner", choices=PLANNERS, default="shardgym")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    # Copies on all ranks would need an optimiser of their own.
    types = ["table_wise", "column_wise", "row_wise"]
    constraints = {
        table.name: ParameterConstraints(sharding_types=types, pooling_factors=[table.pooling_factor])
        for table in TABLES
    }
    planner = PLANNERS[given.planner](
        topology=Topology(
            world_size=dist.get_world_size(),
            compute_device="cpu",
            ddr_cap=2**30,
            intra_host_bw=1e6,  # bytes per ms
        ),
        batch_size=BATCH_SIZE,
        constraints=constraints,
    )
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.05}
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
    plan = planner.collective_plan(make_model(), sharders, dist.group.WORLD)
    model = DistributedModelParallel(make_model(), device=torch.device("cpu"), plan=plan, sharders=sharders)
    dense = [parameter for name, parameter in model.named_parameters() if "embedding_bags" not in name]
    optimizer = torch.optim.SGD(dense, lr=0.05)
    if dist.get_rank() == 0:
        print(plan)
    for step in range(given.steps):
        optimizer.zero_grad()
        loss, _ = model(Batch(dist.get_rank(), step))
        loss.backward()  # updates the tables, too
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {float(loss.detach()):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
