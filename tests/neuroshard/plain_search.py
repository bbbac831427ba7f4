"""The published search written down plainly: the oracle of correctness, and what speed is compared with.

One prediction per call: a device's shards are encoded, summed and priced anew, and remembered by the shards in the
order in which they were placed, as in the published code (`neurosharder.py`). Nothing is shared with `neuroshard`.
"""

import math
from dataclasses import dataclass

import numpy as np

from shardgym import Shard, ShardingPlan
from shardgym.costs.links import COLUMNS, IDS, LOADS, SHARDS
from shardgym.costs.shard_keys import ShardKey
from shardgym.costs.simulator.features import shards_of
from shardgym.costs.ties import quantized

BEAM_WIDTH, CANDIDATES, LEVELS, GRID = 3, 10, 10, 11
SCALES = [1.0 + 0.05 * step for step in range(GRID)]


@dataclass(frozen=True)
class Piece:
    """So many columns of a table."""

    table: str
    columns: int
    bytes: int


class PlainSearch:
    """The search of one task with a simulator, an oracle."""

    def __init__(self, task, cost):
        self.task = task
        self.predictor = cost.predictor()
        self.features: dict[Piece, tuple] = {}
        self.computed: dict[tuple[Piece, ...], np.ndarray] = {}
        self.mean_columns = sum(table.embedding_dim for table in task.tables) / task.num_devices

    def run(self) -> tuple[ShardingPlan | None, float]:
        """Return the plan and its cost; None and infinity when the published search finds nothing."""
        pieces = [self.piece(table.name, table.embedding_dim) for table in self.task.tables]
        best_devices, best_cost = self.place_over_grid(pieces)
        beam = [pieces]
        for _ in range(LEVELS):
            scored = []
            for parent in beam:
                for child in self.children(parent):
                    devices, cost = self.place_over_grid(child)
                    scored.append((cost, child))
                    if cost < best_cost:
                        best_devices, best_cost = devices, cost
            if not scored:
                break
            beam = [child for _, child in sorted(scored, key=lambda entry: entry[0])[:BEAM_WIDTH]]
        return (None if best_devices is None else self.plan(best_devices)), best_cost

    def piece(self, table: str, columns: int) -> Piece:
        return Piece(
            table,
            columns,
            self.task.block_bytes(self.task.table(table), self.task.table(table).num_embeddings, columns),
        )

    def children(self, pieces: list[Piece]) -> list[list[Piece]]:
        """Halve each of the largest and of the costliest pieces."""
        numbers = range(len(pieces))
        if len(pieces) < CANDIDATES:
            tried = set(numbers)
        else:
            by_size = sorted(numbers, key=lambda n: pieces[n].bytes)[-CANDIDATES:]
            by_compute = sorted(numbers, key=lambda n: self.compute_ms([pieces[n]]))[-CANDIDATES:]
            tried = {*by_size, *by_compute}
        children = []
        for n in sorted(tried):
            columns = pieces[n].columns // 2
            if columns % 4 == 0:
                half = self.piece(pieces[n].table, columns)
                children.append([*pieces[:n], half, *pieces[n + 1 :], half])
        return children

    def place_over_grid(self, pieces: list[Piece]) -> tuple[list[list[Piece]] | None, float]:
        best_devices, best_cost = None, math.inf
        for scale in SCALES:
            devices = self.place(pieces, scale)
            if devices is not None:
                cost = self.total_ms(devices)
                if cost < best_cost:
                    best_devices, best_cost = devices, cost
        return best_devices, best_cost

    def place(self, pieces: list[Piece], scale: float) -> list[list[Piece]] | None:
        """Costliest piece first, each to the device that computes least so far among those with room."""
        devices: list[list[Piece]] = [[] for _ in range(self.task.num_devices)]
        compute, size, columns = ([0] * len(devices) for _ in range(3))
        waiting = sorted(pieces, key=lambda piece: self.compute_ms([piece]))
        while waiting:
            piece = waiting.pop()
            with_room = [
                d for d, memory in enumerate(self.task.topology.memory_bytes)
                if size[d] + piece.bytes <= memory and columns[d] + piece.columns <= scale * self.mean_columns
            ]  # fmt: skip
            if not with_room:
                return None
            device = min(with_room, key=lambda d: (compute[d], size[d], d))
            devices[device].append(piece)
            size[device] += piece.bytes
            columns[device] += piece.columns
            compute[device] = self.compute_ms(devices[device])
        return devices

    def compute_ms(self, pieces: list[Piece]) -> float:
        """Predict forward plus backward compute of a device."""
        return float(self.passes_ms(pieces).sum())

    def passes_ms(self, pieces: list[Piece]) -> np.ndarray:
        """Predict both passes of a device, rounded so that the order of a sum's terms decides nothing."""
        if not pieces:
            return np.zeros(2)
        key = tuple(pieces)
        if key not in self.computed:
            latents = np.vstack([self.latents(piece) for piece in pieces])
            one = np.ones(1, dtype=np.int64)
            self.computed[key] = quantized(self.predictor.device_ms(latents.sum(axis=0, keepdims=True), one)[0])
        return self.computed[key]

    def latents(self, piece: Piece) -> np.ndarray:
        if piece not in self.features:
            rows = self.task.table(piece.table).num_embeddings
            shards = shards_of(self.task, [ShardKey(piece.table, rows, piece.columns)])
            self.features[piece] = self.predictor.network.encode(shards)
        return self.features[piece]

    def total_ms(self, devices: list[list[Piece]]) -> float:
        compute = np.array([[self.passes_ms(pieces) for pieces in devices]])
        loads = np.array([[self.loads(pieces) for pieces in devices]])
        number = self.predictor.add_task(self.task)
        return float(self.predictor.slowest_ms(number, compute, loads)[0])

    def loads(self, pieces: list[Piece]) -> list[float]:
        """Ids per sample, columns and pieces."""
        loads = [0.0] * LOADS
        loads[IDS] = float(sum(self.task.table(piece.table).pooling_factor for piece in pieces))
        loads[COLUMNS] = float(sum(piece.columns for piece in pieces))
        loads[SHARDS] = float(len(pieces))
        return loads

    def plan(self, devices: list[list[Piece]]) -> ShardingPlan:
        used = {table.name: 0 for table in self.task.tables}
        shards = []
        for device, pieces in enumerate(devices):
            for piece in pieces:
                first = used[piece.table]
                used[piece.table] += piece.columns
                rows = 0, self.task.table(piece.table).num_embeddings
                shards.append(Shard(piece.table, rows, (first, used[piece.table]), device))
        return ShardingPlan.of(self.task, shards)
