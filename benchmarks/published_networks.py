"""Networks of the published sizes (`compute_cost_model.py`, `comm_cost_model.py`), asked one question at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from neuroshard.shard_table import ShardTable
from shardgym import ShardingTask
from shardgym.costs.simulator import SimulatorCost

GIB = 2**30
#: What the compute network is fitted to: so many devices, for so many steps.
DEVICES, STEPS = 512, 300
Config = dict[str, float]


class ComputeModel:
    """A deep set: 20-128-32 with ReLU after both layers, sum, 32-64-1."""

    def __init__(self, features: torch.Tensor) -> None:
        self.mean, self.scale = features.mean(dim=0), features.std(dim=0) + 1e-6
        self.table = nn.ModuleList([nn.Linear(features.shape[1], 128), nn.Linear(128, 32)])
        self.head = nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 1)])

    def predict(self, devices: Sequence[Sequence[int]], features: torch.Tensor) -> list[float]:
        """Return ms of devices by the numbers of their tables, encoding every table anew."""
        with torch.no_grad():
            ms: list[float] = self.forward(devices, features).tolist()
        return ms

    def forward(self, devices: Sequence[Sequence[int]], features: torch.Tensor) -> torch.Tensor:
        """Return ms of devices, shape (G,)."""
        features = (features - self.mean) / self.scale
        held = [features[numbers] for numbers in devices]
        counts = torch.tensor([len(rows) for rows in held])
        codes = torch.cat(held)
        for layer in self.table:
            codes = torch.relu(layer(codes))
        owner = torch.repeat_interleave(torch.arange(len(held)), counts)
        sums = torch.zeros(len(held), codes.shape[1]).index_add_(0, owner, codes)
        return self.head[1](torch.relu(self.head[0](sums))).view(-1)

    def fit(self, devices: Sequence[Sequence[int]], features: torch.Tensor, ms: torch.Tensor) -> None:
        """Fit to times of devices."""
        optimizer = torch.optim.Adam([*self.table.parameters(), *self.head.parameters()], lr=3e-3)
        with torch.no_grad():
            self.head[1].bias += ms.mean()
        for _ in range(STEPS):
            loss = ((self.forward(devices, features) - ms) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class CommModel:
    """A network for one number of devices: inputs-128-64-32-16-devices."""

    def __init__(self, inputs: int, devices: int) -> None:
        widths = [inputs, 128, 64, 32, 16, devices]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(widths)])
        self.mean, self.scale = torch.full((inputs,), 200.0), torch.full((inputs,), 100.0)

    def predict(self, inputs: list[float]) -> list[float]:
        """Return ms of every device."""
        x = (torch.tensor([inputs]) - self.mean) / self.scale
        with torch.no_grad():
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x))
            ms: list[float] = self.layers[-1](x).flatten().tolist()
        return ms


def fitted(task: ShardingTask, cost: SimulatorCost) -> ComputeModel:
    """Return a compute network for a task, fitted to devices that hold random shards of it."""
    shards = ShardTable(task)
    rng = np.random.default_rng(0)
    rows = shards.reached_by_halving()
    predictor = cost.predictor()
    latents = predictor.latents(predictor.encode(task, [shards.shard(row) for row in rows.tolist()]))
    widths = zip(shards.tables[rows].tolist(), shards.columns[rows].tolist(), strict=True)
    features = features_of([config_of(task, table) | {"dim": columns} for table, columns in widths])
    most = 2 * max(task.num_tables // task.num_devices, 2)
    held = [rng.integers(0, len(rows), rng.integers(1, most)).tolist() for _ in range(DEVICES)]
    ms = predictor.compute_ms(np.array([latents[numbers].sum(axis=0) for numbers in held])).sum(axis=1)
    model = ComputeModel(features)
    model.fit(held, features, torch.from_numpy(ms).float())
    return model


def config_of(task: ShardingTask, number: int) -> Config:
    """Return the 20 features of a table by name."""
    table = task.tables[number]
    bins = table.reuse_histogram or (0.0,) * 17
    named = {f"bin_{n}": float(share) for n, share in enumerate(bins)}
    return {**named, "dim": table.embedding_dim, "pooling_factor": table.pooling_factor, "row": table.num_embeddings}


def features_of(configs: Sequence[Config]) -> torch.Tensor:
    """Return features of tables in the order of their names, shape (T, 20)."""
    return torch.tensor([[float(value) for _, value in sorted(config.items())] for config in configs])


def size_gib(config: Config) -> float:
    """Return the size of a table in single precision."""
    return config["row"] * config["dim"] * 4 / GIB
