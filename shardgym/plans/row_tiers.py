"""Rows of tables in tiers: copies on all devices, on one of every node, and rows on one device, as shards of a plan."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.row_access import access_by_range, position_matters
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask

#: Parts of a tier, each of which is spread over all devices of the tier.
STRIPES = 6


class Tiers(NamedTuple):
    """Cut points of one table: the first rows are held by all devices, the next by one of each node, others by one."""

    everywhere: int  #: rows that all devices hold
    in_nodes: int  #: the row after the last that one device of each node holds


def node_size(task: ShardingTask) -> int:
    """Return the devices of a node; 0 where there are not several nodes of one size with several devices each."""
    size = task.topology.fast_domain_size
    return size if 1 < size < task.num_devices and task.num_devices % size == 0 else 0


def tier_plan(task: ShardingTask, tiers: Sequence[Tiers]) -> ShardingPlan:
    """Return a plan with these cut points.

    Rows are ordered by how likely they are, so even cuts of a tier would leave its hot end to the first device. So a
    tier is cut into stripes first, whose rows differ by the same factor; each is cut evenly over the devices, and its
    hottest piece goes to the device that is asked for least so far, by all tables. All devices get as many rows. Tiers
    are of every table, ascending, and not beyond its rows.
    """
    devices = task.num_devices
    size = node_size(task)
    load_of_places = np.zeros(max(size, 1))
    load_of_devices = np.zeros(devices)
    shards: list[Shard] = []
    for table, (everywhere, in_nodes) in zip(task.tables, tiers, strict=True):
        held = [((0, everywhere), tuple(range(devices)))] if everywhere else []
        for rows, place in _pieces(table, everywhere, in_nodes, load_of_places):
            held.append((rows, tuple(range(place, devices, size))))
        for rows, device in _pieces(table, in_nodes, table.num_embeddings, load_of_devices):
            held.append((rows, (device,)))
        # Pieces are valid: checking them takes longer than choosing them.
        columns = 0, table.embedding_dim
        shards += [
            Shard.unchecked(table=table.name, rows=rows, columns=columns, devices=holders) for rows, holders in held
        ]
    return ShardingPlan.of(task, shards)


def _pieces(table: EmbeddingTable, first: int, last: int, load: Floats) -> list[tuple[tuple[int, int], int]]:
    """Return the rows of a tier in pieces, each with its place; the load of places is added to."""
    if first == last:
        return []
    places = len(load)
    found: list[tuple[tuple[int, int], int]] = []
    for start, stop in _stripes(table, first, last, places):
        edges = np.unique(start + (stop - start) * np.arange(places + 1) // places)
        # The hottest rows of a stripe are its first. Sums of equal loads differ by rounding: ties go by position.
        lightest = np.argsort(np.rint(load * 2**20), kind="stable").tolist()
        asked = table.embedding_dim * table.pooling_factor * access_by_range(table, edges)
        load[lightest[: len(asked)]] += asked
        found += zip(itertools.pairwise(edges.tolist()), lightest, strict=False)
    return found


def _stripes(table: EmbeddingTable, first: int, last: int, places: int) -> list[tuple[int, int]]:
    """Return the first and the last row of each stripe; one where no rows are hotter than others."""
    if not position_matters(table) or places == 1:
        return [(first, last)]
    begin = min(max(first, places), last)
    edges: Ints = np.geomspace(begin, last, STRIPES + 1).astype(np.int64)
    edges[0], edges[-1] = first, last
    edges = np.unique(edges)
    return list(itertools.pairwise(edges.tolist()))
