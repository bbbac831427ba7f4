"""NeuroShard's search as published, in time: torch networks of the published sizes, called once per question.

Written anew from the published code (`neurosharder.py`, `simulator.py`, `compute_cost_model.py`, `comm_cost_model.py`)
so that it asks what that asks, in the same order and as often: a device is priced by encoding all of its tables again
unless the same tables came together in the same order before; all tables are standardised in every call; every
candidate starts from a snapshot of the tables that is worked out again. The constants are the published ones.

How much it does depends on what the networks say. The compute network is therefore fitted to a simulator's predictions
for the tables of the task, so that both searches go through similar placements; those of communication are random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from published_networks import GIB, CommModel, Config, config_of, features_of, fitted, size_gib

from neuroshard import SearchSettings
from shardgym import ShardingTask
from shardgym.costs.simulator import SimulatorCost


class PublishedSearch:
    """The search of one task.

    Args:
        task: the task; devices have as much memory as the first.
        cost: the simulator whose predictions the compute network is fitted to.
        settings: constants of the search.

    Attributes:
        inner_searches: searches over the grid so far.
    """

    def __init__(self, task: ShardingTask, cost: SimulatorCost, settings: SearchSettings | None = None) -> None:
        torch.manual_seed(0)
        self.settings, self.devices = settings or SearchSettings(), task.num_devices
        self.memory_gib = task.topology.memory_bytes[0] / GIB
        self.inner_searches = 0
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
        self.configs, self.raw = [config.copy() for config in configs], raw.copy()
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
        self.inner_searches += 1
        best = math.inf
        for scale in self.settings.scales().tolist():
            placed = self.greedy(scale)
            if placed is not None:
                best = min(best, self.final_ms(placed))
        return best

    def greedy(self, scale: float) -> list[list[int]] | None:
        """Costliest table first, to the device that computes least so far among those with room."""
        held: list[list[int]] = [[] for _ in range(self.devices)]
        sizes, dims, compute = ([0.0] * self.devices for _ in range(3))
        waiting = sorted(range(len(self.dims)), key=lambda n: self.singles[n])
        while waiting:
            table = waiting.pop()
            chosen, least = -1, (math.inf, math.inf)
            for device in range(self.devices):
                if sizes[device] + self.sizes[table] > self.memory_gib:
                    continue
                if dims[device] + self.dims[table] > scale * self.mean_dim:
                    continue
                if (compute[device], sizes[device]) < least:
                    chosen, least = device, (compute[device], sizes[device])
            if chosen < 0:
                return None
            held[chosen].append(table)
            sizes[chosen] += self.sizes[table]
            dims[chosen] += self.dims[table]
            compute[chosen] = self.device_ms(held[chosen])
        return held

    def device_ms(self, tables: list[int]) -> float:
        """Price a device, unless the same tables came together in the same order before."""
        key = tuple(self.raw[n] for n in tables), tuple(self.dims[n] for n in tables)
        if key not in self.cache:
            self.cache[key] = self.compute.predict([tables], self.features)[0]
        return self.cache[key]

    def final_ms(self, held: list[list[int]]) -> float:
        """Price a whole plan, compute again included."""
        if max(sum(size_gib(self.configs[n]) for n in tables) for tables in held) > self.memory_gib:
            return math.inf
        dims = [float(sum(self.configs[n]["dim"] for n in tables)) for tables in held]
        compute = self.compute.predict(held, self.features)
        backward = self.backward.predict(dims)
        busy = [a + b for a, b in zip(compute, backward, strict=True)]
        forward = self.forward.predict(dims + [ms - min(busy) for ms in busy])
        return max(sum(parts) for parts in zip(compute, backward, forward, strict=True))
