"""Tables as features, and several tasks as padded arrays: what the networks of learned solvers take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import reuse_of
from shardgym.tables.table import REUSE_BINS
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

#: The 21 features of DreamShard (`utils.py`) and AutoShard (`training.py`), in DreamShard's order.
FEATURES = ("dim", "rows", "pooling factor", "size", *(f"bin {i}" for i in range(REUSE_BINS)))

#: How many of them are amounts, which are seen as logarithms; the others are shares.
AMOUNTS = 4


def table_features(task: ShardingTask) -> Floats:
    """Return the features of all tables, not yet scaled, shape (T, 21).

    Dimension, rows, pooling factor and bytes of the weights are logarithms: they range over several powers of ten. A
    table without a reuse histogram gets that of one batch drawn from its ids.

    Raises:
        InputError: a table has no histogram, and its recorded ids cannot be found.
    """
    dims = np.array([table.embedding_dim for table in task.tables], dtype=np.float64)
    rows = np.array([table.num_embeddings for table in task.tables], dtype=np.float64)
    pooling = np.array([table.pooling_factor for table in task.tables], dtype=np.float64)
    size = rows * dims * np.array([ELEMENT_BYTES[task.precision_of(table)] for table in task.tables])
    reuse = np.array([reuse_of(table, task.batch_size) for table in task.tables])
    return np.column_stack([np.log(dims), np.log(rows), np.log1p(pooling), np.log(size), reuse])


@dataclass(frozen=True)
class FeatureScale:
    """What features are centred on and divided by; shares are left as they are.

    Of the tables of the training tasks, once for all. DreamShard's code scales by the tables of each task, so that a
    table looks different from task to task.
    """

    mean: Floats  #: shape (21,)
    std: Floats  #: shape (21,), 1 where a feature does not vary

    @classmethod
    def of(cls, tasks: Iterable[ShardingTask]) -> FeatureScale:
        """Take the scale from all tables of some tasks."""
        values = np.concatenate([table_features(task) for task in tasks])
        mean = values.mean(axis=0)
        std = values.std(axis=0)
        mean[AMOUNTS:] = 0.0
        std[AMOUNTS:] = 1.0
        return cls(mean, np.where(std > 1e-6, std, 1.0))

    @classmethod
    def identity(cls) -> FeatureScale:
        """Return the scale that changes nothing, for networks whose weights are about to be loaded."""
        return cls(np.zeros(len(FEATURES)), np.ones(len(FEATURES)))


@dataclass(frozen=True)
class TaskBatch:
    """B tasks of up to T tables and D devices, padded at the end."""

    features: Tensor  #: of the tables, not yet scaled, 0 where padded, shape (B, T, 21)
    table_mask: Tensor  #: true for tables that exist, shape (B, T)
    table_bytes: Tensor  #: of whole tables with optimiser state, shape (B, T)
    memory_bytes: Tensor  #: of the devices, shape (B, D)
    device_mask: Tensor  #: true for devices that exist, shape (B, D)

    @classmethod
    def of(cls, tasks: Sequence[ShardingTask]) -> TaskBatch:
        """Pad tasks to the largest of them."""
        num_tables = max(task.num_tables for task in tasks)
        num_devices = max(task.num_devices for task in tasks)
        features = torch.zeros(len(tasks), num_tables, len(FEATURES))
        table_bytes = torch.zeros(len(tasks), num_tables, dtype=torch.int64)
        memory_bytes = torch.zeros(len(tasks), num_devices, dtype=torch.int64)
        for b, task in enumerate(tasks):
            features[b, : task.num_tables] = torch.from_numpy(table_features(task))
            table_bytes[b, : task.num_tables] = torch.tensor([task.table_bytes(table) for table in task.tables])
            memory_bytes[b, : task.num_devices] = torch.tensor(task.capacity_bytes)
        table_counts = torch.tensor([task.num_tables for task in tasks])
        device_counts = torch.tensor([task.num_devices for task in tasks])
        return cls(
            features,
            torch.arange(num_tables) < table_counts[:, None],
            table_bytes,
            memory_bytes,
            torch.arange(num_devices) < device_counts[:, None],
        )

    def __len__(self) -> int:
        return len(self.features)

    def take(self, index: Tensor) -> TaskBatch:
        """Return the chosen tasks, which may repeat; padding is as before."""
        return TaskBatch(*(getattr(self, field.name)[index] for field in fields(self)))
