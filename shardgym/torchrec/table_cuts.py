"""The cut of a table in a plan as TorchRec needs it: one of its seven sharding types, and the ranks.

Plans whose row shards differ from TorchRec's are refused. TorchRec would accept them, but send ids to ranks as if the
shards were equal (`RwSparseFeaturesDist`, `TwRwSparseFeaturesDist`).
"""

import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from shardgym.errors import InputError
from shardgym.plans.feasibility import format_area
from shardgym.plans.plan import Kind, ShardingPlan
from shardgym.plans.shard import Shard, format_devices
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.model_tables import split_name

#: Types of tables with all rows in each shard. TorchRec runs the first apart, and has one class for the others.
BY_COLUMNS: tuple[Kind, ...] = ("table_wise", "table_column_wise", "column_wise")

#: Types of tables whose rows are cut over some ranks.
BY_ROWS: tuple[Kind, ...] = ("row_wise", "table_row_wise", "grid_shard")
#: Those of all tables of a collection under which TorchRec divides mean-pooled ones by their own bag sizes.
RIGHT_MEANS: tuple[Kind, ...] = ("row_wise", "table_row_wise")


class Ranks(NamedTuple):
    """The ranks that hold all tables together."""

    number: int  #: number of ranks; rank r holds the shards of device r
    per_machine: int  #: ranks per machine

    @property
    def per_host(self) -> int:
        """Ranks per host by TorchRec's rule: all of them if machines do not divide them."""
        return self.number if self.number % self.per_machine else self.per_machine


class TableCut(NamedTuple):
    """The cut of one table."""

    name: str
    kind: Kind  #: TorchRec's type
    #: Shards of the first group of devices in TorchRec's order; none for a table that all devices hold.
    shards: tuple[Shard, ...]
    block: int = 0  #: number of ranks that share the rows of a column block; 0 if rows are not cut


def cut_of(plan: ShardingPlan, task: ShardingTask, table: EmbeddingTable, ranks: Ranks) -> TableCut:
    """Return the cut of a table over the ranks of one group; raises `InputError` if TorchRec cannot cut so.

    The plan is one that `as_run` returned.
    """
    kind = plan.kind_of(table.name, task)
    if kind == "data_parallel":
        return TableCut(table.name, kind, ())
    shards = plan.of_table(table.name)
    _check_one_kernel(shards)
    _check_holders(shards, task.num_devices, ranks.number)
    if all(shard.num_rows == table.num_embeddings for shard in shards):
        if len(shards) > 1:
            kind = "table_column_wise" if kind == "table_column_wise" else "column_wise"
        return TableCut(table.name, kind, shards)
    by_columns = sorted(shards, key=operator.attrgetter("columns", "rows"))
    blocks = [list(block) for _, block in itertools.groupby(by_columns, operator.attrgetter("columns"))]
    for left, right in itertools.pairwise(blocks):
        if left[0].columns[1] != right[0].columns[0]:
            raise InputError(
                f"table '{table.name}' is cut into rectangles that form no grid, {_place(left[0])} and "
                f"{_place(right[0])} among them: TorchRec cuts columns first, and rows in each of these blocks"
            )
    sizes = [_block_size(table, block, ranks, alone=len(blocks) == 1) for block in blocks]
    for size, block in zip(sizes, blocks, strict=True):
        if size != sizes[0]:
            raise InputError(
                f"table '{table.name}' is cut by rows over {sizes[0]} ranks, and over {size} with {_place(block[0])}: "
                "TorchRec cuts all blocks of columns over equally many ranks"
            )
    kind = "grid_shard" if len(blocks) > 1 else "row_wise" if sizes[0] == ranks.number else "table_row_wise"
    return TableCut(table.name, kind, tuple(by_columns), sizes[0])


def as_run(plan: ShardingPlan, task: ShardingTask) -> ShardingPlan:
    """Return a plan with the pieces of columns that TorchRec runs in place of it; other tables stay as they are.

    Pieces of a table on one rank have one width. So have all pieces of an `EmbeddingCollection`, because
    `ShardedEmbeddingCollection` takes the width of the first one for all.
    """
    pieces: dict[str, tuple[Shard, ...]] = {table.name: plan.of_table(table.name) for table in task.tables}
    unpooled: dict[str, list[str]] = {}
    for table in task.tables:
        own = pieces[table.name]
        if len(own) > 1 and all(shard.num_rows == table.num_embeddings for shard in own):
            pieces[table.name] = own = _with_one_width_per_rank(own)
            if len(own) > 1 and not table.is_pooled:
                unpooled.setdefault(split_name(table.name)[0], []).append(table.name)
    for names in unpooled.values():
        width = math.gcd(*(shard.num_columns for name in names for shard in pieces[name]))
        pieces |= {name: _cut_to(pieces[name], width) for name in names}
    return ShardingPlan.of(task, [shard for own in pieces.values() for shard in own], plan.group_size)


def fewest_types(cuts: Sequence[TableCut]) -> list[Kind]:
    """Return types for the tables of one collection that minimise TorchRec's operators.

    TorchRec runs one fused operator and one set of exchanges for each type. A whole table can be a table cut by columns
    into one shard; a table cut by rows over some ranks can be a grid with one block of columns.
    """
    kinds = {cut.kind for cut in cuts}
    columns = max((kind for kind in BY_COLUMNS if kind in kinds), key=BY_COLUMNS.index, default=None)
    grids = {cut.block for cut in cuts if cut.kind == "grid_shard"}
    types: list[Kind] = []
    for cut in cuts:
        if cut.kind in BY_COLUMNS and columns is not None:
            types.append(columns)
        else:
            types.append("grid_shard" if cut.block in grids else cut.kind)
    return types


def of_sequences(cuts: Sequence[TableCut], *, on_cpus: bool) -> list[TableCut]:
    """Return the tables of one `EmbeddingCollection` as TorchRec shards them: whole, by columns, by rows or replicated.

    Pieces of columns in one domain are `column_wise`, too.
    """
    for cut in cuts:
        if on_cpus and cut.kind == "data_parallel":
            raise InputError(
                f"table '{cut.name}' is unpooled and data_parallel: FBGEMM's dense kernel pools rows on CPUs, and "
                "TorchRec fails; keep it whole, cut it, or export the plan for cuda"
            )
        if cut.kind in ("table_row_wise", "grid_shard"):
            raise InputError(
                f"table '{cut.name}' is unpooled and {cut.kind}: TorchRec cuts rows of an EmbeddingCollection only "
                "over all ranks; cut it so, or by columns, or keep it whole"
            )
    return [cut._replace(kind="column_wise") if cut.kind == "table_column_wise" else cut for cut in cuts]


def check_one_block_size(cuts: Sequence[TableCut]) -> int:
    """Return the number of ranks of tables cut by rows over some ranks, the same for all; 0 without such tables."""
    found = [cut for cut in cuts if cut.kind in ("table_row_wise", "grid_shard")]
    for cut in found:
        if cut.block != found[0].block:
            raise InputError(
                f"table '{found[0].name}' is cut by rows over {found[0].block} ranks, table '{cut.name}' with "
                f"{_place(cut.shards[0])} over {cut.block}: TorchRec needs the same number for all tables of a job"
            )
    return found[0].block if found else 0


def _check_one_kernel(shards: Sequence[Shard]) -> None:
    first = shards[0]
    for shard in shards:
        if (shard.compute_kernel, shard.cache_load_factor) != (first.compute_kernel, first.cache_load_factor):
            raise InputError(
                f"table '{shard.table}' has kernel {first.compute_kernel} with {_place(first)}, and "
                f"{shard.compute_kernel} with {_place(shard)}: TorchRec has one kernel, and one cache_load_factor, for "
                "all of a table; fused_uvm_caching keeps popular rows on the device, too"
            )


def _check_holders(shards: Sequence[Shard], num_devices: int, group: int) -> None:
    for shard in shards:
        if len(shard.devices) * group != num_devices or len({device % group for device in shard.devices}) > 1:
            raise InputError(
                f"{_place(shard)} of table '{shard.table}': TorchRec puts tables on all devices, and shards on one "
                "device or, in a plan with group_size, on the same place of every group"
            )


def _block_size(table: EmbeddingTable, shards: Sequence[Shard], ranks: Ranks, *, alone: bool) -> int:
    """Return the number of ranks that share the rows of a column block: all ranks of any hosts if it is alone."""
    first = shards[0].devices[0]
    sizes = [n for n in range(1, ranks.number + 1) if ranks.number % n == 0 and n % ranks.per_host == 0]
    if alone and ranks.number not in sizes:
        sizes.append(ranks.number)
    for size in sizes:
        start = first // size * size
        block = -(-table.num_embeddings // size)
        expected = [(row, start + row // block) for row in range(0, table.num_embeddings, block)]
        if [(shard.rows[0], shard.devices[0]) for shard in shards] != expected:
            continue
        if len(shards) < size:
            area = format_area((table.num_embeddings,) * 2, shards[0].columns)
            raise InputError(
                f"{area} of table '{table.name}' are left to device {start + len(shards)}, none: {size} pieces of "
                f"{block} rows are more than its {table.num_embeddings} rows, and TorchRec fails on a rank without "
                "rows; keep the table whole or cut its columns"
            )
        return size
    raise InputError(
        f"table '{table.name}' is cut by rows over {format_devices([shard.devices[0] for shard in shards])}: "
        f"TorchRec needs pieces of ceil(rows / n) rows on each of n = {ranks.number} ranks, in their order, or on the "
        f"n = {ranks.per_host} ranks of one host; {_place(_first_wrong(table, shards))} are not such a piece"
    )


def _first_wrong(table: EmbeddingTable, shards: Sequence[Shard]) -> Shard:
    """Return the first shard that breaks blocks of equally many pieces on successive ranks, or the first shard."""
    block = -(-table.num_embeddings // len(shards))
    first = shards[0].devices[0]
    for n, shard in enumerate(shards):
        end = min(n * block + block, table.num_embeddings)
        if shard.rows != (n * block, end) or shard.devices[0] != first + n:
            return shard
    return shards[0]


def _place(shard: Shard) -> str:
    return f"{format_area(shard.rows, shard.columns)} on {format_devices(shard.devices)}"


def _with_one_width_per_rank(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """Cut column shards of a table so that those on one rank have one width.

    TorchRec views a table's pieces on a rank as one matrix with the width of the first piece, and fails on that rank if
    widths differ.
    """
    pieces = []
    place = operator.attrgetter("devices", "compute_kernel", "cache_load_factor")
    for one in set(map(place, shards)):
        mine = [shard for shard in shards if place(shard) == one]
        if len({shard.num_columns for shard in mine}) > 1:
            mine = _joined(mine)
            mine = list(_cut_to(mine, math.gcd(*(shard.num_columns for shard in mine))))
        pieces += mine
    return tuple(sorted(pieces))


def _cut_to(shards: Sequence[Shard], width: int) -> tuple[Shard, ...]:
    return tuple(
        dataclasses.replace(shard, columns=(first, first + width))
        for shard in shards
        for first in range(*shard.columns, width)
    )


def _joined(shards: list[Shard]) -> list[Shard]:
    """Join adjacent column shards, given in the order of columns."""
    joined = shards[:1]
    for shard in shards[1:]:
        if shard.columns[0] == joined[-1].columns[1]:
            joined[-1] = dataclasses.replace(shard, columns=(joined[-1].columns[0], shard.columns[1]))
        else:
            joined.append(shard)
    return joined
