"""What TorchRec's planner is given: a model with a task's tables, and a topology with its devices."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from shardgym.costs.torchrec_rating import PlannerConstants
from shardgym.task import ShardingTask

if TYPE_CHECKING:
    from torchrec import EmbeddingBagCollection
    from torchrec.distributed.planner import Topology


def table_name(number: int) -> str:
    """Return what a table of the task is called in TorchRec, where names are parts of module paths."""
    return f"t{number}"


def make_collection(task: ShardingTask) -> EmbeddingBagCollection:
    """Return a task's tables as one collection without weights: table n is "tn", with the one feature "fn"."""
    import torch
    import torchrec

    data_type = {"fp32": torchrec.DataType.FP32, "fp16": torchrec.DataType.FP16}[task.precision]
    configs = [
        torchrec.EmbeddingBagConfig(
            num_embeddings=table.num_embeddings, embedding_dim=table.embedding_dim, name=table_name(n),
            feature_names=[f"f{n}"], data_type=data_type,
        )
        for n, table in enumerate(task.tables)
    ]  # fmt: skip
    collection: EmbeddingBagCollection = torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    return collection


def make_topology(task: ShardingTask, constants: PlannerConstants) -> Topology:
    """Return a task's devices, with the memory of each as its HBM, or as its DDR on "cpu"."""
    from torchrec.distributed.planner import types

    memory = task.topology.memory_bytes
    cap = "hbm_cap" if constants.compute_device == "cuda" else "ddr_cap"
    alike = len(set(memory)) == 1
    custom = None if alike else types.CustomTopologyData({cap: list(memory)}, task.num_devices)
    topology: Topology = types.Topology(
        world_size=task.num_devices, local_world_size=task.topology.fast_domain_size, **{cap: memory[0]},
        custom_topology_data=custom, created_by_factory=True, **asdict(constants),
    )  # fmt: skip
    return topology


def batch_size_per_device(task: ShardingTask) -> int:
    """Return the samples of one device, rounded up: TorchRec takes the same number on all of them."""
    return math.ceil(task.batch_size / task.num_devices)
