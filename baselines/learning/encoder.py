"""Table features, padded tasks, and encoders of sets of tables, in torch for many plans and in NumPy for one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import reuse_of
from shardgym.costs.ties import QUANTUM
from shardgym.tables.table import REUSE_BINS
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

#: The 21 features of DreamShard (`utils.py`) and AutoShard (`training.py`), in DreamShard's order.
FEATURES = ("dim", "rows", "pooling factor", "size", *(f"bin {i}" for i in range(REUSE_BINS)))

#: How many of them are amounts, which are seen as logarithms; the others are shares.
AMOUNTS = 4
#: Widths of the encoder in DreamShard (`models.py`) and AutoShard (`training.py`).
ENCODER_WIDTHS = (len(FEATURES), 128, 32)
LATENT = ENCODER_WIDTHS[-1]


def table_features(task: ShardingTask) -> Floats:
    """Return the unscaled features of all tables, shape (T, 21).

    Dimension, rows, pooling factor and bytes of the weights are logarithms. A table without a reuse histogram gets the
    histogram of one batch drawn from its ids.
    """
    dims = np.array([table.embedding_dim for table in task.tables], dtype=np.float64)
    rows = np.array([table.num_embeddings for table in task.tables], dtype=np.float64)
    pooling = np.array([table.pooling_factor for table in task.tables], dtype=np.float64)
    size = rows * dims * np.array([ELEMENT_BYTES[task.precision_of(table)] for table in task.tables])
    reuse = np.array([reuse_of(table, task.batch_size) for table in task.tables])
    return np.column_stack([np.log(dims), np.log(rows), np.log1p(pooling), np.log(size), reuse])


@dataclass(frozen=True)
class FeatureScale:
    """Means and scales of features over all training tasks (DreamShard's code: over each task); shares are unscaled."""

    mean: Floats  #: shape (21,)
    std: Floats  #: shape (21,), 1 where a feature does not vary

    @classmethod
    def of(cls, tasks: Iterable[ShardingTask]) -> FeatureScale:
        """Compute the scale of all tables of some tasks."""
        values = np.concatenate([table_features(task) for task in tasks])
        mean = values.mean(axis=0)
        std = values.std(axis=0)
        mean[AMOUNTS:] = 0.0
        std[AMOUNTS:] = 1.0
        return cls(mean, np.where(std > 1e-6, std, 1.0))

    @classmethod
    def identity(cls) -> FeatureScale:
        """Return the identity scale, for networks whose weights are about to be loaded."""
        return cls(np.zeros(len(FEATURES)), np.ones(len(FEATURES)))


@dataclass(frozen=True)
class TaskBatch:
    """B tasks, padded to T tables and D devices."""

    features: Tensor  #: unscaled features of tables, 0 where padded, shape (B, T, 21)
    table_mask: Tensor  #: true for tables that exist, shape (B, T)
    table_bytes: Tensor  #: bytes of whole tables with optimiser state, shape (B, T)
    memory_bytes: Tensor  #: memory of devices, shape (B, D)
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
        """Return the tasks at these indices, which may repeat, with the same padding."""
        return TaskBatch(*(getattr(self, field.name)[index] for field in fields(self)))


def mlp(*widths: int, end_with_relu: bool = False) -> nn.Sequential:
    """Return linear layers with ReLU between them, and after the last one if `end_with_relu`."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if end_with_relu else layers[:-1]))


class TableEncoder(nn.Module):
    """Encodes tables: scales features, then applies layers 21 -> 128 -> 32 with ReLU; the weights include `scale`."""

    mean: Tensor
    std: Tensor

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(scale.mean).float())
        self.register_buffer("std", torch.from_numpy(scale.std).float())
        self.layers = mlp(*ENCODER_WIDTHS, end_with_relu=True)

    def forward(self, features: Tensor) -> Tensor:
        """Encode table features, (..., 21), as latents, (..., 32)."""
        latents: Tensor = self.layers((features - self.mean) / self.std)
        return latents


def on_device(devices: Tensor, num_devices: int) -> Tensor:
    """One-hot encode devices of tables, (..., T) to (..., T, D); device -1 means none."""
    return (devices[..., None] == torch.arange(num_devices)).to(torch.get_default_dtype())


def quantized_tensor(values: Tensor) -> Tensor:
    """Quantize numbers that decide, see `shardgym.costs.ties.quantized`."""
    return torch.round(values / QUANTUM) * QUANTUM


def sum_per_device(latents: Tensor, devices: Tensor, num_devices: int) -> Tensor:
    """Sum latents (B, T, K) over the tables of every device, with devices (B, E, T), to (B, E, D, K)."""
    return torch.einsum("betd,btk->bedk", on_device(devices, num_devices), latents)


class Linear(NamedTuple):
    """A linear layer with weight of shape (inputs, outputs) and bias of shape (outputs,)."""

    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        """Apply the layer, (..., inputs) to (..., outputs)."""
        outputs: Floats = x @ self.weight
        outputs += self.bias
        return outputs


def linear_of(layer: nn.Linear) -> Linear:
    """Return a snapshot of a layer's weights."""
    return Linear(np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy())


def linears_of(chain: nn.Module) -> list[Linear]:
    """Return the linear layers of a chain, without its ReLUs."""
    return [linear_of(layer) for layer in chain.modules() if isinstance(layer, nn.Linear)]


def forward(layers: Sequence[Linear], x: Floats, *, end_with_relu: bool = False) -> Floats:
    """Apply layers with ReLU between them, and after the last one if `end_with_relu`."""
    *hidden, last = layers
    for layer in hidden:
        x = layer(x)
        np.maximum(x, 0, out=x)
    x = last(x)
    return np.maximum(x, 0, out=x) if end_with_relu else x


def side_by_side(chains: Iterable[nn.Module], units: Tensor) -> list[Linear]:
    """Join chains of two linear layers with one output each into one chain whose outputs are multiplied by units."""
    firsts, lasts = zip(*map(linears_of, chains), strict=True)
    widths = [len(last.weight) for last in lasts]
    ends = np.cumsum(widths)
    weight = np.zeros((ends[-1], len(ends)))
    for column, (last, width, end, unit) in enumerate(zip(lasts, widths, ends, units.numpy(), strict=True)):
        weight[end - width : end, column] = last.weight[:, 0] * unit
    return [
        Linear(np.concatenate([f.weight for f in firsts], axis=1), np.concatenate([f.bias for f in firsts])),
        Linear(weight, np.concatenate([last.bias for last in lasts]) * units.numpy()),
    ]


def encoded(encoder: TableEncoder, features: Floats) -> Floats:
    """Encode table features, (T, 21), as `TableEncoder` does, to (T, 32)."""
    scaled = (features - encoder.mean.numpy()) / encoder.std.numpy()
    return forward(linears_of(encoder.layers), scaled, end_with_relu=True)
