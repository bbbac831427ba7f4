"""NeuroShard's search as published: the reference of `search.py` for time. Not a script.

Written anew from the published code (`neurosharder.py`, `simulator.py`, `compute_cost_model.py`, `comm_cost_model.py`)
with torch networks of the published sizes. It calls them as that code does, in the same order and as often: a device is
priced by encoding all of its tables again unless the same tables came together in the same order before; all tables are
standardised in every call; every candidate starts from a snapshot of the tables that is worked out again. The constants
are the published ones.

How much it does depends on what the networks say. The compute network is therefore fitted to a simulator's predictions
for the tables of the task, so that both searches go through similar placements; those of communication are random.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from neuroshard import SearchSettings
from neuroshard.shard_table import ShardTable
from shardgym import ShardingTask
from shardgym.costs.simulator.cost import SimulatorCost

GIB = 2**30
#: What the compute network is fitted to: so many devices, for so many steps.
DEVICES = 512
STEPS = 300
Config = dict[str, float]


class PublishedSearch:
    """The search of one task; devices have as much memory as the first, and the network is fitted to `cost`."""

    def __init__(self, task: ShardingTask, cost: SimulatorCost) -> None:
        torch.manual_seed(0)
        self.settings = SearchSettings()
        self.devices = task.num_devices
        self.memory_gib = task.topology.memory_bytes[0] / GIB
        self.cache: dict[Any, float] = {}
        configs = [config_of(task, number) for number in range(task.num_tables)]
        self.compute = fitted(task, cost)
        self.backward = CommModel(self.devices, self.devices)
        self.forward = CommModel(2 * self.devices, self.devices)
        self.recover(configs, list(range(len(configs))), None)

    def run(self) -> float:
        """Search; return the lowest cost in ms, which is that of random networks."""
        best = self.over_grid()
        beam = [self.snapshot()]
        for _ in range(self.settings.levels):
            scored = []
            for parent in beam:
                for _ in self.children(parent):
                    cost = self.over_grid()
                    best = min(best, cost)
                    scored.append((cost, self.snapshot()))
            if not scored:
                break
            beam = [snapshot for _, snapshot in sorted(scored, key=lambda entry: entry[0])[: self.settings.beam_width]]
        return best

    def children(self, parent: tuple[Any, ...]) -> Iterator[int]:
        """Halve one candidate after the other, each time from the parent's snapshot."""
        self.recover(*parent)
        number = self.settings.candidates
        if number > len(self.sizes):
            candidates = np.arange(len(self.sizes))
        else:
            tops = [np.argpartition(values, -number)[-number:] for values in (self.sizes, self.singles)]
            candidates = np.union1d(*tops)
        for table in candidates.tolist():
            if (self.dims[table] // 2) % 4 == 0:
                self.recover(*parent)
                self.halve(table)
                yield table

    def snapshot(self) -> tuple[Any, ...]:
        """Return copies of what a column plan is."""
        return [config.copy() for config in self.configs], self.raw.copy(), self.singles.copy()

    def recover(self, configs: list[Config], raw: list[int], singles: list[float] | None) -> None:
        """Start from a column plan: features, widths and sizes of all tables are worked out again."""
        self.configs = [config.copy() for config in configs]
        self.raw = raw.copy()
        self.features = features_of(self.configs)
        self.dims = [int(config["dim"]) for config in self.configs]
        self.mean_dim = sum(self.dims) / self.devices
        self.sizes = [size_gib(config) for config in self.configs]
        if singles is None:
            singles = self.compute.predict([[n] for n in range(len(self.configs))], self.features)
        self.singles = singles.copy()

    def halve(self, table: int) -> None:
        """Halve a table's width and append the other half."""
        self.configs[table]["dim"] = self.dims[table] = self.dims[table] // 2
        self.configs.append(self.configs[table].copy())
        self.features = torch.cat([self.features, features_of([self.configs[table]])])
        self.features[table] = self.features[-1]
        self.sizes[table] /= 2
        self.singles[table] = self.compute.predict([[table]], self.features)[0]
        for values in (self.dims, self.sizes, self.singles, self.raw):
            values.append(values[table])

    def over_grid(self) -> float:
        """Place under every value of the grid; return the lowest cost."""
        best = math.inf
        for scale in self.settings.scales().tolist():
            placed = self.greedy(scale)
            if placed is not None:
                best = min(best, self.final_ms(placed))
        return best

    def greedy(self, scale: float) -> list[list[int]] | None:
        """Costliest table first, to the device that computes least so far among those with room."""
        placed: list[list[int]] = [[] for _ in range(self.devices)]
        sizes, dims, compute = ([0.0] * self.devices for _ in range(3))
        waiting = sorted(range(len(self.dims)), key=lambda n: self.singles[n])
        while waiting:
            table = waiting.pop()
            chosen = -1
            least = (math.inf, math.inf)
            for device in range(self.devices):
                if sizes[device] + self.sizes[table] > self.memory_gib:
                    continue
                if dims[device] + self.dims[table] > scale * self.mean_dim:
                    continue
                if (compute[device], sizes[device]) < least:
                    chosen = device
                    least = (compute[device], sizes[device])
            if chosen < 0:
                return None
            placed[chosen].append(table)
            sizes[chosen] += self.sizes[table]
            dims[chosen] += self.dims[table]
            compute[chosen] = self.device_ms(placed[chosen])
        return placed

    def device_ms(self, tables: list[int]) -> float:
        """Price a device, unless the same tables came together in the same order before."""
        key = tuple(self.raw[n] for n in tables), tuple(self.dims[n] for n in tables)
        if key not in self.cache:
            self.cache[key] = self.compute.predict([tables], self.features)[0]
        return self.cache[key]

    def final_ms(self, placed: list[list[int]]) -> float:
        """Price a whole plan, compute again included."""
        if max(sum(size_gib(self.configs[n]) for n in tables) for tables in placed) > self.memory_gib:
            return math.inf
        dims = [float(sum(self.configs[n]["dim"] for n in tables)) for tables in placed]
        compute = self.compute.predict(placed, self.features)
        backward = self.backward.predict(dims)
        busy = [a + b for a, b in zip(compute, backward, strict=True)]
        forward = self.forward.predict(dims + [ms - min(busy) for ms in busy])
        return max(sum(parts) for parts in zip(compute, backward, forward, strict=True))


class ComputeModel:
    """A deep set: 20-128-32 with ReLU after both layers, sum, 32-64-1."""

    def __init__(self, features: torch.Tensor) -> None:
        self.mean = features.mean(dim=0)
        self.scale = features.std(dim=0) + 1e-6
        self.table = nn.Sequential(nn.Linear(features.shape[1], 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def predict(self, devices: Sequence[Sequence[int]], features: torch.Tensor) -> list[float]:
        """Return ms of devices by the numbers of their tables, encoding every table anew."""
        with torch.no_grad():
            ms: list[float] = self.forward(devices, features).tolist()
        return ms

    def forward(self, devices: Sequence[Sequence[int]], features: torch.Tensor) -> torch.Tensor:
        """Return ms of devices, shape (G,)."""
        features = (features - self.mean) / self.scale
        counts = torch.tensor([len(numbers) for numbers in devices])
        codes = self.table(torch.cat([features[numbers] for numbers in devices]))
        owner = torch.repeat_interleave(torch.arange(len(devices)), counts)
        sums = torch.zeros(len(devices), codes.shape[1]).index_add_(0, owner, codes)
        return self.head(sums).view(-1)

    def fit(self, devices: Sequence[Sequence[int]], features: torch.Tensor, ms: torch.Tensor) -> None:
        """Fit to times of devices."""
        optimizer = torch.optim.Adam([*self.table.parameters(), *self.head.parameters()], lr=3e-3)
        with torch.no_grad():
            self.head[-1].bias += ms.mean()
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
        self.mean = torch.full((inputs,), 200.0)
        self.scale = torch.full((inputs,), 100.0)

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
    vectors = shards.vectors(predictor, rows)[rows]
    widths = zip(shards.tables[rows].tolist(), shards.columns[rows].tolist(), strict=True)
    features = features_of([config_of(task, table) | {"dim": columns} for table, columns in widths])
    most = 2 * max(task.num_tables // task.num_devices, 2)
    devices = [rng.integers(0, len(rows), rng.integers(1, most)).tolist() for _ in range(DEVICES)]
    ms = predictor.compute_ms(np.array([vectors[numbers].sum(axis=0) for numbers in devices])).sum(axis=1)
    model = ComputeModel(features)
    model.fit(devices, features, torch.from_numpy(ms).float())
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
