"""Shards with several holders: column blocks cut by rows, and replicas, as TorchRec makes them.

TorchRec cuts rows into pieces of ceil(rows / n), one for each of the n devices of a fast domain or of all devices, in
their order; all column blocks of a table have the same n. The first holder therefore determines a cut by rows, and the
shard stays one shard of an episode until it is placed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.envs.features import BYTES, COLUMNS, FREE_BYTES, LOOKUPS, SHARDS, part_features
from shardgym.tables.row_access import access_share, position_matters
from shardgym.tasks.task import ShardingTask

Figures = dict[str, npt.NDArray[Any]]

#: Arrays with an entry for each shard.
#:
#: - `holders`: devices that hold a part of it, consecutive ones; 1 for a shard with all rows on one device;
#: - `last`: number of the shard that stands for the last holder's part, which may have fewer rows; else its own;
#: - `step`: 1 where each holder's part has a number of its own, in their order, as popular rows lie in some of them;
#:   else 0, and all but the last one are alike;
#: - `by_rows`, `replica`: numbers of what it becomes when its rows are cut (further), and when it is replicated; 0
#:   where it cannot be;
#: - `replicated`: whether each holder has all rows;
#: - `in_domain`: whether its rows are cut over one fast domain of several;
#: - `row_share`: rows that a holder has, over those of the table; `first_row` of them, where that matters, else 0;
#: - `on_device`: bytes, columns, columns times pooling factor, and 1 for a holder. Columns and columns times pooling
#:   factor are those of its share of the rows, or of the samples, so that those of all holders add up to the shard's.
KINDS: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
    "holders": ((), np.int64), "last": ((), np.int64), "step": ((), np.int64), "by_rows": ((), np.int64),
    "replica": ((), np.int64), "replicated": ((), np.bool_), "in_domain": ((), np.bool_), "row_share": ((), np.float64),
    "first_row": ((), np.int64),
    "on_device": ((FREE_BYTES,), np.float64),
}  # fmt: skip


def kinds_of_none() -> dict[str, list[Any]]:
    """Return the entry of `NOTHING`."""
    return {name: [np.zeros(shape, kind)] for name, (shape, kind) in KINDS.items()} | {"holders": [1]}


def with_kinds(
    task: ShardingTask, shards: Figures, first: int, scale: list[float], largest_device: float, *, replicas: bool
) -> tuple[Figures, Figures]:
    """Append entries of shards cut by rows and of replicas to those of shards with one holder; also return `KINDS`.

    Mean-pooled tables are not cut by rows, because TorchRec divides them by the wrong bag sizes; nor is a table if a
    device would get no rows, as TorchRec then fails. `shards` are arrays of `ShardCatalog.shard` without names and
    ranks, `first` is the number of the first shard, and `scale` as in `ShardCatalog.task`.
    """
    devices = task.num_devices
    domain = task.topology.fast_domain_size
    count = len(shards["rows"])
    own = np.arange(first, first + count)
    single = {name: np.zeros((count, *shape), kind) for name, (shape, kind) in KINDS.items()} | {
        "holders": np.ones(count, dtype=np.int64), "last": own, "row_share": np.ones(count),
        "on_device": shards["amounts"][:, :FREE_BYTES],
    }  # fmt: skip
    more = _MoreShards(task, [shards], [single], first)
    over_all = more.cut_by_rows(devices)
    over_domain = more.cut_by_rows(domain) if domain < devices and devices % domain == 0 else np.zeros_like(own)
    single["by_rows"] = np.where(over_domain > 0, over_domain, over_all)
    # Costs price no replicas where domains differ in size, see `CostModel._why_not`.
    if replicas and devices > 1 and devices % domain == 0:
        single["replica"] = more.replicate()
    shards, kinds = more.joined()

    # A shard over a domain may go on to all devices, or be halved.
    of = np.flatnonzero(over_domain)
    cut = over_domain[of] - first
    kinds["by_rows"][cut] = over_all[of]
    half = shards["half"][of]
    half = np.where(half > 0, over_domain[np.maximum(half - first, 0)], 0)
    shards["halvable"][cut] = half > 0
    shards["half"][cut] = np.where(half > 0, half, -1)
    several = np.flatnonzero(kinds["holders"] > 1)
    replicated = kinds["replicated"][several]
    lookups = shards["amounts"][several, LOOKUPS]
    id_share = kinds["on_device"][several, LOOKUPS] / np.where(lookups > 0, lookups, 1.0)
    pooling = np.array([table.pooling_factor for table in task.tables])[shards["position"][several]]
    shards["features"][several] = part_features(
        shards["features"][several], shards["rows"][several], np.where(replicated, 1.0, id_share) * pooling,
        kinds["on_device"][several], scale, largest_device,
    )  # fmt: skip
    return shards, kinds


class _MoreShards:
    """Entries of shards with one holder, followed by shards with several that are made of them."""

    def __init__(self, task: ShardingTask, shards: list[Figures], kinds: list[Figures], first: int) -> None:
        self._task = task
        self._shards = shards
        self._kinds = kinds
        self._first = first
        self._next = first + len(shards[0]["rows"])
        # Of how many shards the table consists at least, once there is this one.
        self._least_shards = np.rint(np.log2(1 / shards[0]["width_share"])).astype(np.int64) + 1

    def cut_by_rows(self, holders: int) -> Ints:
        """Add shards cut by rows over so many holders; return their numbers by shard with one holder, 0 for none."""
        rows = self._shards[0]["rows"]
        # TorchRec divides mean-pooled tables that are cut by rows by the wrong bag sizes, and cuts unpooled ones over
        # all devices alone.
        tables = self._task.tables
        cuttable = [t.pooling == "sum" or (not t.is_pooled and holders == self._task.num_devices) for t in tables]
        of_shard = np.array(cuttable)[self._shards[0]["position"]]
        block = -(-rows // holders)
        rest = rows - (holders - 1) * block
        # Each run of holders has one shard of a table.
        can_be = of_shard & (rest > 0) & (self._least_shards <= self._task.num_devices // holders) & (holders > 1)
        ordered = np.array([position_matters(table) for table in self._task.tables])[self._shards[0]["position"]]
        of = np.flatnonzero(can_be & ~ordered)
        numbers = self._add(of, holders, block[of])
        added = self._shards[-1]
        last = self._kinds[-1]["last"]
        uneven = np.flatnonzero(rest[of] < block[of])
        last[uneven] = self._add(of[uneven], holders, rest[of[uneven]])
        last_bytes = added["bytes"].copy()
        last_bytes[uneven] = self._shards[-1]["bytes"]
        added["amounts"][:, FREE_BYTES] = (holders - 1) * added["bytes"] + last_bytes
        found = self._by_single(of, numbers)
        of = np.flatnonzero(can_be & ordered)
        if len(of):
            place = np.tile(np.arange(holders), len(of))
            each = np.repeat(of, holders)
            part_rows = np.where(place == holders - 1, rest[each], block[each])
            numbers = self._add(each, holders, part_rows, place * block[each]).reshape(-1, holders)
            self._kinds[-1]["last"].reshape(-1, holders)[:, 0] = numbers[:, -1]
            self._kinds[-1]["step"].reshape(-1, holders)[:, 0] = 1
            of_all = self._shards[-1]["bytes"].reshape(-1, holders).sum(axis=1)
            self._shards[-1]["amounts"][::holders, FREE_BYTES] = of_all
            found[of] = numbers[:, 0]
        return found

    def replicate(self) -> Ints:
        """Add tables that all devices hold; return their numbers by shard with one holder, 0 for none."""
        of = np.flatnonzero(self._least_shards == 1)
        holders = self._task.num_devices
        numbers = self._add(of, holders, self._shards[0]["rows"][of], replicated=True)
        kinds = self._kinds[-1]
        kinds["on_device"][:, [COLUMNS, LOOKUPS]] /= holders
        self._shards[-1]["amounts"][:, FREE_BYTES] = holders * self._shards[-1]["bytes"]
        return self._by_single(of, numbers)

    def joined(self) -> tuple[Figures, Figures]:
        """Return all entries."""
        joined = [
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            for parts in (self._shards, self._kinds)
        ]
        return joined[0], joined[1]

    def _add(
        self, of: Ints, holders: int, rows: Ints, first_row: Ints | None = None, *, replicated: bool = False
    ) -> Ints:
        """Add entries like those at `of`, for so many holders with so many rows each; return their numbers."""
        shards = {name: array[of] for name, array in self._shards[0].items()}
        row_share = rows / shards["rows"]
        on_device = shards["amounts"][:, :FREE_BYTES] * row_share[:, None]
        firsts = np.zeros_like(rows) if first_row is None else first_row
        numbers_of = (shards["position"].tolist(), rows.tolist(), shards["width"].tolist(), firsts.tolist())
        copies = holders if replicated else 1
        on_device[:, BYTES] = [
            self._task.block_bytes(self._task.tables[position], num_rows, width, first_row=first, num_holders=copies)
            for position, num_rows, width, first in zip(*numbers_of, strict=True)
        ]
        on_device[:, SHARDS] = 1
        if first_row is not None:
            tables = [self._task.tables[position] for position in shards["position"].tolist()]
            ranges = zip(tables, first_row.tolist(), (first_row + rows).tolist(), strict=True)
            on_device[:, LOOKUPS] = shards["amounts"][:, LOOKUPS] * np.array([access_share(*of) for of in ranges])
        numbers = np.arange(self._next, self._next + len(of))
        self._next += len(of)
        uncut = {"half": np.full(len(of), -1), "halvable": np.zeros(len(of), dtype=np.bool_)}
        self._shards.append(shards | uncut | {"rows": rows, "bytes": on_device[:, BYTES]})
        kinds = {name: np.zeros((len(of), *shape), kind) for name, (shape, kind) in KINDS.items()}
        in_domain = np.full(len(of), holders < self._task.num_devices)
        self._kinds.append(
            kinds | {"holders": np.full(len(of), holders), "last": numbers.copy(), "in_domain": in_domain,
                     "replicated": np.full(len(of), replicated), "row_share": row_share, "on_device": on_device}
            | ({} if first_row is None else {"first_row": first_row})
        )  # fmt: skip
        return numbers

    def _by_single(self, of: Ints, numbers: Ints) -> Ints:
        found = np.zeros_like(self._least_shards)
        found[of] = numbers
        return found
