"""Tables as features, padded tasks, and encoders of sets of tables, in torch for many plans and in NumPy for one."""

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
    """Return the features of all tables, not yet scaled, shape (T, 21).

    Dimension, rows, pooling factor and bytes of the weights are logarithms: they range over several powers of ten. A
    table without a reuse histogram gets that of one batch drawn from its ids.
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


def mlp(*widths: int, end_with_relu: bool = False) -> nn.Sequential:
    """Return linear layers with ReLU between them, and after the last one where asked for."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if end_with_relu else layers[:-1]))


class TableEncoder(nn.Module):
    """Encodes tables: scales their features, then layers 21 -> 128 -> 32, each with ReLU.

    Args:
        scale: of the features; kept with the weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(scale.mean).float())
        self.register_buffer("std", torch.from_numpy(scale.std).float())
        self.layers = mlp(*ENCODER_WIDTHS, end_with_relu=True)

    def forward(self, features: Tensor) -> Tensor:
        """Return the latents of tables: features of shape (..., 21) become (..., 32)."""
        latents: Tensor = self.layers((features - self.mean) / self.std)
        return latents


def on_device(devices: Tensor, num_devices: int) -> Tensor:
    """Return 1.0 where a table is on a device, -1 being none: shape (..., T) becomes (..., T, D)."""
    return (devices[..., None] == torch.arange(num_devices)).to(torch.get_default_dtype())


def quantized_tensor(values: Tensor) -> Tensor:
    """Return what `shardgym.costs.ties.quantized` makes of numbers that decide."""
    return torch.round(values / QUANTUM) * QUANTUM


def sum_per_device(latents: Tensor, devices: Tensor, num_devices: int) -> Tensor:
    """Return the sums of latents (B, T, K) over the tables of every device, those being (B, E, T): (B, E, D, K)."""
    return torch.einsum("betd,btk->bedk", on_device(devices, num_devices), latents)


class Linear(NamedTuple):
    """A linear layer: shape (inputs, outputs), and (outputs,)."""

    weight: Floats
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        """Apply it: shape (..., inputs) becomes (..., outputs)."""
        outputs: Floats = x @ self.weight
        outputs += self.bias
        return outputs


def linear_of(layer: nn.Linear) -> Linear:
    """Return a layer as it is now; changes to its weights are not seen later."""
    return Linear(np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy())


def linears_of(chain: nn.Module) -> list[Linear]:
    """Return the linear layers of a chain, ReLU aside."""
    return [linear_of(layer) for layer in chain.modules() if isinstance(layer, nn.Linear)]


def forward(layers: Sequence[Linear], x: Floats, *, end_with_relu: bool = False) -> Floats:
    """Apply layers with ReLU between them, and after the last one where asked for."""
    *hidden, last = layers
    for layer in hidden:
        x = layer(x)
        np.maximum(x, 0, out=x)
    x = last(x)
    return np.maximum(x, 0, out=x) if end_with_relu else x


def side_by_side(chains: Iterable[nn.Module], units: Tensor) -> list[Linear]:
    """Return chains of two linear layers, with one output each times its unit, as one chain with all outputs."""
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
    """Return the latents of tables as `TableEncoder` does: features of shape (T, 21) become (T, 32)."""
    scaled = (features - encoder.mean.numpy()) / encoder.std.numpy()
    return forward(linears_of(encoder.layers), scaled, end_with_relu=True)
