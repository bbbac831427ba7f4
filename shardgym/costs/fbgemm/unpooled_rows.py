"""Unpooled tables of one rank in complete steps: rows of all ids go back to the ranks that asked; and all-to-alls.

TorchRec's `EmbeddingCollection` does the same: kernels put out a row for each id, an all-to-all brings rows to the
ranks with the samples, which put those of a table cut by rows into the order of their ids, and pieces of columns side
by side. There is an all-to-all for each sharding type, all under way at once.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from shardgym.costs.fbgemm.jobs import ShardSpec
from shardgym.costs.fbgemm.operator import Ids, TableIds, build_operator
from shardgym.costs.fbgemm.step_plan import Part, StepClock, StepPlan
from shardgym.tables.table import EmbeddingTable


class RowLookup:
    """Puts out a row for each id of the shards of one width on one rank."""

    def __init__(self, rows: Part) -> None:
        #: Whose ids are looked up.
        self.num_shards = 0 if rows.shards is None else len(rows.shards.shards)
        #: Of FBGEMM; None where the rank has no shard.
        self.operator: Any = None if rows.shards is None else build_operator(rows.shards, bounds_check=True)
        self._rows: Any = None
        self._counts: list[int] = []

    def look_up(self, ids: Ids | None, samples: Sequence[int]) -> list[list[torch.Tensor]]:
        """Return the rows of each rank's samples in each shard, by rank; `ids` are of all samples."""
        if self.operator is None or ids is None:
            return [[] for _ in samples]
        of_shard = sum(samples)
        firsts = torch.tensor([0, *itertools.accumulate(samples)][:-1])
        begins = (torch.arange(self.num_shards)[:, None] * of_shard + firsts).view(-1)
        self._counts = torch.diff(ids.offsets[begins], append=ids.offsets[-1:]).tolist()
        self._rows = self.operator(ids.indices, ids.offsets)
        parts = torch.split(self._rows.detach(), self._counts)
        return [list(parts[rank :: len(samples)]) for rank in range(len(samples))]

    def backward(self, gradients: Sequence[Sequence[torch.Tensor]]) -> None:
        """Take the gradients of the rows of each rank in each shard, and update weights."""
        if self.operator is None:
            return
        by_shard = [of_rank[shard] for shard in range(self.num_shards) for of_rank in gradients]
        self._rows.backward(torch.cat(by_shard))
        self._rows = None


class _Piece(NamedTuple):
    """Rows of the own samples' ids in one shard."""

    shard: ShardSpec
    columns: slice  #: of its table
    num_ids: int  #: in the shard

    @property
    def size(self) -> int:
        return self.num_ids * self.shard.width


class RowsOfType:
    """Unpooled tables of one sharding type on one rank; `of_widths` as in `StepPlan.unpooled`."""

    def __init__(
        self, of_widths: Sequence[Sequence[Part]], samples: Sequence[int], number: int, dtype: torch.dtype
    ) -> None:
        self._of_widths = of_widths
        self._samples = list(samples)
        self._dtype = dtype
        #: Of all samples, one of each width, for whole columns and for rows apart.
        self.lookups = [RowLookup(of_devices[number]) for of_devices in of_widths]
        tables = (piece[0].table for rank in range(len(samples)) for piece in self._shards(rank))
        self._tables: dict[str, EmbeddingTable] = {table.name: table for table in tables}
        self._pieces: list[list[_Piece]] = []
        self._places: dict[ShardSpec, torch.Tensor] = {}
        self._num_ids: dict[str, int] = {}
        #: Values that this rank sends to each in this step.
        self.sent: list[int] = []
        self._shapes: list[list[tuple[int, int]]] = []

    def num_shards(self, rank: int) -> int:
        """Return how many shards a rank holds."""
        return len(list(self._shards(rank)))

    def look_up(self, ids: Sequence[Ids | None]) -> torch.Tensor:
        """Return the rows that go to all ranks, rank by rank, flat; `ids` are those of each lookup."""
        parts = [lookup.look_up(of, self._samples) for lookup, of in zip(self.lookups, ids, strict=True)]
        of_ranks = [[rows for of_lookup in parts for rows in of_lookup[rank]] for rank in range(len(self._samples))]
        self.sent = [sum(rows.numel() for rows in to_rank) for to_rank in of_ranks]
        self._shapes = [[(len(rows), rows.shape[1]) for rows in to_rank] for to_rank in of_ranks]
        flat = [rows.reshape(-1) for to_rank in of_ranks for rows in to_rank]
        return torch.cat(flat).to(self._dtype) if flat else torch.empty(0, dtype=self._dtype)

    @property
    def received(self) -> list[int]:
        """Values that it receives from each."""
        return [sum(piece.size for piece in from_rank) for from_rank in self._pieces]

    def expect(self, features: Sequence[Sequence[TableIds]], tables: Mapping[str, torch.Tensor]) -> None:
        """Work out what comes back, and where rows of ids belong.

        `features` are ids of the own samples that go to each rank, shard by shard; `tables` are all of them by table.
        """
        self._pieces = []
        for rank, to_rank in enumerate(features):
            self._pieces.append(
                [_Piece(*shard, len(of.indices)) for shard, of in zip(self._shards(rank), to_rank, strict=True)]
            )
        self._places = {}
        self._num_ids = {name: len(tables[name]) for name in self._tables}
        for piece in itertools.chain(*self._pieces):
            if not piece.shard.is_whole and piece.shard not in self._places:
                low, high = piece.shard.rows
                ids = tables[piece.shard.table.name]
                self._places[piece.shard] = torch.nonzero((ids >= low) & (ids < high)).view(-1)

    def joined(self, received: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the rows of all ids of the own samples, by table."""
        found = {
            name: torch.empty(self._num_ids[name], table.embedding_dim, dtype=self._dtype)
            for name, table in self._tables.items()
        }
        pieces = list(itertools.chain(*self._pieces))
        for piece, values in zip(pieces, torch.split(received, [piece.size for piece in pieces]), strict=True):
            of_table = found[piece.shard.table.name]
            rows = values.view(piece.num_ids, piece.shard.width)
            if piece.shard.is_whole:
                of_table[:, piece.columns] = rows
            else:
                of_table[self._places[piece.shard], piece.columns] = rows
        return found

    def packed(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return gradients of all rows as they go back, rank by rank, flat."""
        parts = []
        for piece in itertools.chain(*self._pieces):
            of_table = gradients[piece.shard.table.name]
            if not piece.shard.is_whole:
                of_table = of_table[self._places[piece.shard]]
            parts.append(of_table[:, piece.columns].reshape(-1))
        return torch.cat(parts) if parts else torch.empty(0, dtype=self._dtype)

    def backward(self, gradients: torch.Tensor) -> None:
        """Update weights from the gradients that ranks sent back, flat."""
        shapes = list(itertools.chain(*self._shapes))
        parts = torch.split(gradients, [rows * width for rows, width in shapes])
        of_all = iter([part.view(shape) for part, shape in zip(parts, shapes, strict=True)])
        by_rank = [[next(of_all) for _ in to_rank] for to_rank in self._shapes]
        begin = 0
        for lookup in self.lookups:
            end = begin + lookup.num_shards
            lookup.backward([of_rank[begin:end] for of_rank in by_rank])
            begin = end

    def _shards(self, rank: int) -> Iterator[tuple[ShardSpec, slice]]:
        """Yield the unpooled shards of a rank in the order in which it looks them up, with their columns."""
        for of_devices in self._of_widths:
            held = of_devices[rank]
            for shard, first in zip([] if held.shards is None else held.shards.shards, held.begins, strict=True):
                yield shard, slice(first, first + shard.width)


class UnpooledTables:
    """The unpooled part of a plan on one rank; values of `dtype` are exchanged."""

    def __init__(self, plan: StepPlan, samples: Sequence[int], number: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._types = [RowsOfType(of_widths, samples, number, dtype) for of_widths in plan.unpooled]
        #: Of all samples; ids of their shards are last among those that are exchanged.
        self.lookups = [lookup for of_type in self._types for lookup in of_type.lookups]

    def expect(self, features: Sequence[Sequence[TableIds]], tables: Mapping[str, torch.Tensor]) -> None:
        """See `RowsOfType.expect`; `features` begin with ids of pooled shards."""
        ends = [len(to_rank) for to_rank in features]
        for of_type in reversed(self._types):
            begins = [end - of_type.num_shards(rank) for rank, end in enumerate(ends)]
            places = zip(features, begins, ends, strict=True)
            of_type.expect([to_rank[begin:end] for to_rank, begin, end in places], tables)
            ends = begins

    def look_up(self, ids: Sequence[Ids | None]) -> list[torch.Tensor]:
        """Return the rows that go to all ranks, by sharding type; `ids` are those of each lookup."""
        rest = iter(ids)
        return [of_type.look_up(list(itertools.islice(rest, len(of_type.lookups)))) for of_type in self._types]

    def exchanged(self, sent: Sequence[torch.Tensor], clock: StepClock) -> dict[str, torch.Tensor]:
        """Return the rows of all ids of the own samples, by table."""
        counts = [(of_type.received, of_type.sent) for of_type in self._types]
        rows: dict[str, torch.Tensor] = {}
        for of_type, values in zip(self._types, self._exchange("row_exchange", sent, counts, clock), strict=True):
            rows |= of_type.joined(values)
        return rows

    def packed(self, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return gradients of all rows as they go back, by sharding type."""
        return [of_type.packed(gradients) for of_type in self._types]

    def exchanged_gradients(self, packed: Sequence[torch.Tensor], clock: StepClock) -> list[torch.Tensor]:
        """Return the gradients of rows that this rank looked up, by sharding type."""
        counts = [(of_type.sent, of_type.received) for of_type in self._types]
        return self._exchange("row_gradient_exchange", packed, counts, clock)

    def backward(self, gradients: Sequence[torch.Tensor]) -> None:
        """Update weights."""
        for of_type, values in zip(self._types, gradients, strict=True):
            of_type.backward(values)

    def _exchange(
        self, part: str, sent: Sequence[torch.Tensor], counts: Sequence[tuple[list[int], list[int]]], clock: StepClock
    ) -> list[torch.Tensor]:
        """Return what ranks sent in each all-to-all, rank by rank, flat; counts are from and to each."""
        if not self._types:
            return []
        received = [torch.empty(sum(counts_from), dtype=self._dtype) for counts_from, _ in counts]
        all_to_alls = [AllToAll(into, out, *both) for into, out, both in zip(received, sent, counts, strict=True)]
        bytes_to = [sum(of_rank) * self._dtype.itemsize for of_rank in zip(*(to for _, to in counts), strict=True)]
        clock.exchange(part, lambda: exchange(*all_to_alls), bytes_to)
        return received


class AllToAll(NamedTuple):
    """What one rank gives to an all-to-all and gets from it; D ranks."""

    received: torch.Tensor  #: filled rank by rank, flat
    sent: torch.Tensor  #: values for all ranks, rank by rank, flat
    counts_from: Sequence[int]  #: values from each rank, D numbers
    counts_to: Sequence[int]  #: values for each rank, D numbers


def exchange(*all_to_alls: AllToAll, group: dist.ProcessGroup | None = None) -> None:
    """Run all-to-alls, the same on all ranks, all at once, and wait until this rank is through with them.

    They are as NCCL makes them, which has its own for tensors on a GPU: one send and one receive per peer, all under
    way at once, receives first. gloo's own posts the send to a peer before the receive from it. A rank that comes late
    finds the peer ready to receive, writes all its data, and only then says that it is ready itself, so an exchange
    takes up to twice as long, as ranks happen to arrive. Links between GPUs carry both ways at once. Pairs of ranks
    that have nothing for each other do not wait for each other.
    """
    if all_to_alls[0].sent.is_cuda:
        for work in [dist.all_to_all_single(*each, group=group, async_op=True) for each in all_to_alls]:
            work.wait()
        return
    ranks = dist.group.WORLD if group is None else group
    assert ranks is not None
    own = ranks.rank()
    before = [(own - distance) % ranks.size() for distance in range(1, ranks.size())]
    parts = [
        (torch.split(a.received, list(a.counts_from)), torch.split(a.sent, list(a.counts_to))) for a in all_to_alls
    ]
    # The process group's own calls: those of `torch.distributed` check every tensor, which takes longer than a message.
    works = [
        ranks.recv([received[peer]], peer, tag)
        for tag, (received, _) in enumerate(parts)
        for peer in before
        if len(received[peer])
    ]
    works += [
        ranks.send([sent[peer]], peer, tag)
        for tag, (_, sent) in enumerate(parts)
        for peer in reversed(before)
        if len(sent[peer])
    ]
    for received, sent in parts:
        received[own].copy_(sent[own])
    for work in works:
        work.wait()
