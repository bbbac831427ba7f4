"""DreamShard with cuts: tables are cut by columns until no piece costs too much, and its policy places the pieces."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from baselines.dreamshard.moves import Placement, relieved
from baselines.dreamshard.pieces import ArrayNetwork, Pieces
from baselines.dreamshard.policy import DreamShardNetwork
from baselines.dreamshard.solver import DreamShard
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import ShardingPlan
from shardgym.shard import Shard
from shardgym.task import ShardingTask, exact_bytes
from shardgym.ties import quantized

#: Shares of what devices take on average; for each there is a way to cut, in which no piece takes more. Chosen, as the
#: numbers below, on tasks of the train half.
SHARES = (3.0, 2.2, 1.7, 1.4, 1.2, 1.0, 0.85, 0.7, 0.5)

#: Ways to cut that the policy places the pieces of: those that look best when predicted costs are merely balanced.
EPISODES = 2

#: Changes of a placement at most, after its episode.
CHANGES = 4


class DreamShardColumns(DreamShard):
    """DreamShard's networks on pieces of tables, for plans that cut by columns.

    To the networks a piece is a table of fewer columns, and such tables they were fitted on. Solving asks no oracle:

    1. **Cut.** The cost network predicts every table alone. Tables are cut into 2, 4, 8, ... equal parts until none is
       predicted to take more than a share of what devices take on average. Several shares give several ways to cut. Of
       each way, pieces are balanced by their predicted times, and the network predicts the plan. The best two go on.
    2. **Place.** The policy plays an episode with the pieces of each way, as it would with tables. A piece that fits
       nowhere is halved. Where memory stands in the way, all ways are played, and again with large pieces first.
    3. **Relieve.** Up to four moves or swaps take load off the slowest device, as long as the network says so.

    The plan whose slowest device is predicted to be the fastest is returned. The networks, their training and the
    episode are those of the paper (Zha et al., NeurIPS 2022; see `DreamShard`), which places whole tables. Cuts, moves
    and the choice among plans are ours.

    The weights are those of `dreamshard`, of the package or of a folder. `fit` trains as there, but keeps the step
    whose plans with cuts are best. See `LearnedSolver` for arguments, fitting and files.
    """

    def __init__(self, weights: str | Path | None = None, **settings: Any) -> None:
        super().__init__(weights, **settings)
        self._arrays: dict[str, ArrayNetwork] = {}  # by digest of the weights

    def place(self, network: DreamShardNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the plan; `cost` and `seed` are not used.

        Raises:
            NoFeasiblePlanError: a piece of the least width fits nowhere any more.
        """
        del cost, seed
        pieces = Pieces(self._as_arrays(network), task)
        placements = placements_of(pieces) or [pack(pieces)]
        placements = [relieved(pieces, placement, CHANGES) for placement in placements]
        return plan_of(pieces, min(placements, key=lambda placement: placement.predicted_ms))

    def _as_arrays(self, network: DreamShardNetwork) -> ArrayNetwork:
        """Return the network as arrays, which are kept for loaded weights: those change no more."""
        if self._used is None or self._used.deciding is not network:
            return ArrayNetwork(network)
        digest = self._used.card.weights_sha256
        if digest not in self._arrays:
            self._arrays[digest] = ArrayNetwork(network)
        return self._arrays[digest]


def placements_of(pieces: Pieces) -> list[Placement]:
    """Return where the policy places pieces that tables are cut into in different ways; nothing where all get stuck.

    Args:
        pieces: of the task; parts of tables are added to them.
    """
    ways = ways_to_cut(pieces, SHARES)
    if len(ways) > EPISODES:
        ways = [ways[n] for n in balanced_ms(pieces, ways).argsort(kind="stable").tolist()]
    episodes = [play(pieces, longest_first(pieces, way)) for way in ways[:EPISODES]]
    if any(episode.crowded for episode in episodes):
        episodes += [play(pieces, longest_first(pieces, way)) for way in ways[EPISODES:]]
        episodes += [play(pieces, large_first(pieces, way)) for way in ways]
    return [episode.placement for episode in episodes if episode.placement is not None]


def ways_to_cut(pieces: Pieces, shares: Sequence[float]) -> list[list[int]]:
    """Return different ways to cut all tables, the first of which cuts none.

    Each of `shares` gives one way: a table is cut into 1, 2, 4, ... equal parts, until none costs more than that share
    of what all tables cost together over the number of devices, or its columns allow no more.

    Args:
        pieces: of the task; parts are added to them.
        shares: descending.

    Returns:
        Numbers of the pieces, way by way.
    """
    whole = list(range(pieces.task.num_tables))
    even_ms = sum(pieces.ms[: len(whole)]) / pieces.task.num_devices
    costly = [table for table in whole if pieces.ms[table] > shares[-1] * even_ms]
    cuts = [(table, count) for table in costly for count in part_counts(pieces.units(table))]
    ladders: dict[int, list[list[int]]] = {}
    for (table, _), parts in zip(cuts, pieces.cut(cuts), strict=True):
        ladders.setdefault(table, [[table]]).append(parts)
    cheap = [table for table in whole if table not in ladders]
    ways = [whole]
    for share in shares:
        way = cheap.copy()
        for rungs in ladders.values():
            way += next((parts for parts in rungs if pieces.ms[parts[0]] <= share * even_ms), rungs[-1])
        if len(way) > len(ways[-1]):
            ways.append(way)
    return ways


def part_counts(units: int) -> list[int]:
    """Return 2, 4, 8, ... as long as there are more units of columns, and at last one part for each unit."""
    return [min(2**n, units) for n in range(1, (units - 1).bit_length() + 1)]


def longest_first(pieces: Pieces, way: Sequence[int]) -> list[int]:
    """Return the numbers of pieces in descending order of predicted cost."""
    return sorted(way, key=pieces.ms.__getitem__, reverse=True)


def large_first(pieces: Pieces, way: Sequence[int]) -> list[int]:
    """Return the numbers of pieces in descending order of the share of a device that they take, of time or memory."""
    ms_per_byte = sum(pieces.ms[n] for n in way) / pieces.task.total_capacity_bytes
    return sorted(way, key=lambda n: max(pieces.ms[n], ms_per_byte * pieces.bytes[n]), reverse=True)


def balanced_ms(pieces: Pieces, ways: Sequence[Sequence[int]]) -> Floats:
    """Return what plans are predicted to cost in which the longest piece goes first, to the least loaded device.

    Memory is left aside, and a device takes as long as its pieces are predicted to take alone, added up.

    Args:
        pieces: of the task.
        ways: numbers of the pieces that are placed, W times.

    Returns:
        Shape (W,).
    """
    num_devices = pieces.task.num_devices
    loads = np.empty((len(ways), num_devices, len(pieces.network.idle)))
    for way, of_devices in zip(ways, loads, strict=True):
        order = longest_first(pieces, way)
        devices = []
        least = [(0.0, device) for device in range(num_devices)]
        for number in order:
            ms, device = least[0]
            devices.append(device)
            heapq.heapreplace(least, (ms + pieces.ms[number], device))
        of_devices[:] = pieces.device_loads(order, devices)
    slowest_ms: Floats = pieces.network.device_ms(loads).max(axis=1)
    return slowest_ms


class Episode(NamedTuple):
    """How an episode ended.

    Attributes:
        placement: where the pieces are; None where one of the least width fitted nowhere any more.
        crowded: whether a piece found no room where it was to go.
    """

    placement: Placement | None
    crowded: bool


def play(pieces: Pieces, order: Sequence[int]) -> Episode:
    """Play an episode of DreamShard's policy with pieces for tables: the device with the highest score gets the next.

    Of the devices, those with room. A piece that fits nowhere is halved.

    Args:
        pieces: of the task; halves are added to them.
        order: numbers of those that are to be placed, in the order in which they come up.
    """
    network = pieces.network
    mean_ms = sum(pieces.ms[number] for number in order) / len(order)
    cost_score = network.cost_score(max(mean_ms, network.least_ms))
    room = list(pieces.task.capacity_bytes)
    loads = [network.idle.copy() for _ in room]
    of_pieces = [0.0] * len(room)
    scores = [float(quantized(cost_score(network.idle)))] * len(room)
    waiting = list(reversed(order))
    placed = []
    crowded = False
    while waiting:
        number = waiting.pop()
        size = pieces.bytes[number]
        device = scores.index(max(scores))
        if room[device] < size:
            crowded = True
            fitting = [device for device in range(len(room)) if room[device] >= size]
            if not fitting:
                if pieces.units(number) == 1:
                    return Episode(None, crowded)
                waiting += pieces.halves(number)
                continue
            device = max(fitting, key=scores.__getitem__)
        placed.append((number, device))
        room[device] -= size
        load = loads[device]
        load += pieces.loads[number]
        of_pieces[device] += pieces.scores[number]
        scores[device] = float(quantized(of_pieces[device] + cost_score(load)))
    numbers, devices = zip(*placed, strict=True)
    return Episode(Placement(numbers, devices), crowded)


def pack(pieces: Pieces) -> Placement:
    """Place whole tables by memory alone, the largest on the device with most room; what does not fit is halved.

    Args:
        pieces: of the task; halves are added to them.

    Raises:
        NoFeasiblePlanError: a piece of the least width fits nowhere any more.
    """
    room = list(pieces.task.capacity_bytes)
    waiting = sorted(range(pieces.task.num_tables), key=pieces.bytes.__getitem__)
    placed = []
    while waiting:
        number = waiting.pop()
        device = room.index(max(room))
        if room[device] >= pieces.bytes[number]:
            placed.append((number, device))
            room[device] -= pieces.bytes[number]
        elif pieces.units(number) > 1:
            waiting += pieces.halves(number)
            waiting.sort(key=pieces.bytes.__getitem__)
        else:
            table = pieces.task.tables[pieces.tables[number]]
            raise NoFeasiblePlanError(
                f"dreamshard_columns: a piece of {pieces.columns[number]} columns of table '{table.name}' of "
                f"{exact_bytes(pieces.bytes[number])} fits on no device any more"
            )
    numbers, devices = zip(*placed, strict=True)
    return Placement(numbers, devices)


def plan_of(pieces: Pieces, placement: Placement) -> ShardingPlan:
    """Return a placement as a plan: pieces of a table on one device become one shard.

    Columns are handed out from the left, to the lowest device first.
    """
    columns: dict[tuple[int, int], int] = {}
    for number, device in zip(placement.numbers, placement.devices, strict=True):
        place = pieces.tables[number], device
        columns[place] = columns.get(place, 0) + pieces.columns[number]
    first_left = [0] * pieces.task.num_tables
    shards = []
    for (position, device), width in sorted(columns.items()):
        table = pieces.task.tables[position]
        if width == table.embedding_dim:
            shards.append(Shard.whole(table, device))
            continue
        first = first_left[position]
        first_left[position] += width
        shards.append(Shard(table.name, (0, table.num_embeddings), (first, first + width), (device,)))
    return ShardingPlan.of(pieces.task, shards)
