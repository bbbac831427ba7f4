"""One rank's part of a plan in complete steps: lookups, and the exchanges between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.distributed as dist

from shardgym.costs.fbgemm.lookup import Lookup, dense_optimizer, own_ids
from shardgym.costs.fbgemm.operator import Ids, TableIds, dtype_of
from shardgym.costs.fbgemm.step_plan import StepClock, StepPlan
from shardgym.costs.fbgemm.unpooled_rows import AllToAll, RowLookup, UnpooledTables, exchange


class Features(NamedTuple):
    """What one rank's samples look up."""

    exchanged: list[list[TableIds]]  #: by rank, in each of the shards that it looks up ids of all samples in
    replicated: list[TableIds]  #: in each replica
    unpooled: Mapping[str, torch.Tensor] = MappingProxyType({})  #: all ids, by unpooled table


class Outputs(NamedTuple):
    """What one rank's samples get."""

    #: Columns of whole tables rank by rank, of tables cut by rows, of those in domains domain by domain, and of
    #: replicas; shape (own samples, columns).
    pooled: torch.Tensor
    rows: dict[str, torch.Tensor]  #: of all ids, by unpooled table, shape (ids, columns)


class Domains(NamedTuple):
    """Process groups of this rank's domain, and of the ranks at its place of all domains."""

    inside: dist.ProcessGroup
    between: dist.ProcessGroup

    @classmethod
    def join(cls, size: int) -> Domains:
        """Make the groups of domains of `size` ranks; all ranks do so together."""
        own = dist.get_rank()
        ranks = range(dist.get_world_size())
        inside = [dist.new_group(list(ranks[first : first + size])) for first in ranks[::size]]
        between = [dist.new_group(list(ranks[place::size])) for place in range(size)]
        return cls(inside[own // size], between[own % size])


class PlanOnRank:
    """The part of a plan that one rank holds; `domains` are needed by plans with `domain_rows`."""

    def __init__(self, plan: StepPlan, samples: Sequence[int], number: int, domains: Domains | None = None) -> None:
        example = plan.example
        self._plan = plan
        self._number = number
        self._domains = domains
        self._samples = list(samples)
        self._own_samples = samples[number]
        self._dtype = dtype_of(example)
        self._normal = torch.empty(0, dtype=self._dtype)
        #: Of all samples, by how their outputs are exchanged.
        self.whole = Lookup.of(plan.whole[number], self._dtype)
        self.rows = Lookup(plan.rows[number], self._dtype) if plan.rows else None
        self.domain_rows = Lookup(plan.domain_rows[number], self._dtype) if plan.domain_rows else None
        #: Of the rank's own samples.
        self.replicas = None if plan.replicas is None else Lookup(plan.replicas, self._dtype, dense=True)
        if self.replicas is not None:
            self._optimizer = dense_optimizer(self.replicas.operator, example.optimizer)
        self._pooled = [lookup for lookup in (self.whole, self.rows, self.domain_rows) if lookup is not None]
        self.unpooled = UnpooledTables(plan, samples, number, self._dtype)
        self._lookups: list[Lookup | RowLookup] = [*self._pooled, *self.unpooled.lookups]
        self._num_shards = sum(lookup.num_shards for lookup in self._lookups)
        self._widths = [0 if held is None else held.width for held in plan.whole]
        self._has_ids = any(True for device in range(plan.num_devices) for _ in plan.exchanged(device))
        ranks = list(range(len(samples)))
        size = plan.domain_size
        self._domain = number // size
        # Sums of a domain are for the samples of all ranks at the same place, so these stand together.
        self._by_place = [rank for place in range(size) for rank in ranks[place::size]]
        self._place_samples = [sum(self._samples[place::size]) for place in range(size)]
        # Ids arrive rank by rank, the kernels take them shard by shard.
        self._order = torch.tensor(
            [
                rank * self._num_shards + shard
                for lookup, shards in self._shards_of_lookups()
                for shard in shards
                for rank in (self._by_place if lookup is self.domain_rows else ranks)
            ],
            dtype=torch.int32,
        )

    def step(self, features: Features, clock: StepClock) -> Outputs:
        """Run one step; the clock hears of its parts, see `shardgym.costs.fbgemm.step.PARTS`.

        Returns:
            What the rank's samples get. The dense part of a model would turn it into gradients; its time is the same
            for all plans. Here they are `gradient_like` outputs.
        """
        ids: list[Ids | None] = [None] * len(self._lookups)
        if self._has_ids:
            ids = self._exchanged_ids(features.exchanged, clock)
        replicated = None if self.replicas is None else own_ids(features.replicated)
        self.unpooled.expect(features.exchanged, features.unpooled)
        clock.work("group_ids")
        batch_size = sum(self._samples)
        pooled = [lookup.pool(of, batch_size) for lookup, of in zip(self._pooled, ids, strict=False)]
        sent_rows = self.unpooled.look_up(ids[len(self._pooled) :])
        own = None if self.replicas is None else self.replicas.pool(replicated, self._own_samples)
        clock.work("forward")
        blocks = []
        if self._plan.has_whole:
            blocks += self._exchanged_columns(pooled[0], clock)
        if self.rows is not None:
            blocks.append(self._reduced(pooled[1], clock))
        if self.domain_rows is not None:
            blocks += self._reduced_in_domains(pooled[-1], clock)
        if own is not None:
            blocks.append(own)
        rows = self.unpooled.exchanged(sent_rows, clock)
        blocks = [block if block.dim() == 2 else block.sum(dim=0) for block in blocks]
        joined = torch.cat([torch.empty(self._own_samples, 0, dtype=self._dtype), *blocks], dim=1)
        clock.work("join_outputs")
        gradients = {name: self.gradient_like(of_table) for name, of_table in rows.items()}
        self._backward(self.gradient_like(joined), gradients, clock)
        return Outputs(joined, rows)

    def gradient_like(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the gradient of outputs: random normal numbers, the same in every step.

        Outputs as their own gradients would let weights grow, or shrink to where squares of gradients are denormal.
        """
        count = outputs.numel()
        if count > len(self._normal):
            generator = torch.Generator(self._normal.device).manual_seed(0)
            self._normal = torch.randn(count, generator=generator).to(self._dtype)
        return self._normal[:count].view_as(outputs)

    def _exchanged_ids(self, features: Sequence[Sequence[TableIds]], clock: StepClock) -> list[Ids | None]:
        """Return the ids of each lookup, the samples of all ranks together; None for one without shards."""
        flat = [ids for to in features for ids in to]
        sent_lengths = torch.cat([ids.lengths for ids in flat])
        sent_ids = torch.cat([ids.indices for ids in flat])
        clock.work("pack_ids")
        lengths_from = [count * self._num_shards for count in self._samples]
        lengths_to = [self._own_samples * len(to) for to in features]
        lengths = self._all_to_all("lengths_exchange", sent_lengths, lengths_from, lengths_to, clock)
        ids_from = [int(part.sum()) for part in torch.split(lengths, lengths_from)]
        ids_to = [sum(len(ids.indices) for ids in to) for to in features]
        clock.work("count_ids")
        received = self._all_to_all("values_exchange", sent_ids, ids_from, ids_to, clock)
        return self._grouped(received, lengths, lengths_from)

    def _all_to_all(
        self,
        part: str,
        sent: torch.Tensor,
        counts_from: list[int],
        counts_to: list[int],
        clock: StepClock,
        group: dist.ProcessGroup | None = None,
        ranks: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Return what `ranks`, all by default, sent to this one, rank by rank, flat."""
        received = torch.empty(sum(counts_from), dtype=sent.dtype)
        clock.exchange(
            part,
            lambda: exchange(AllToAll(received, sent.view(-1), counts_from, counts_to), group=group),
            self._bytes(counts_to, ranks, sent.element_size()),
            group,
        )
        return received

    def _grouped(self, ids: torch.Tensor, lengths: torch.Tensor, lengths_from: list[int]) -> list[Ids | None]:
        """Return ids and offsets shard by shard, for each lookup; None for one without shards."""
        if not self._num_shards:
            return [None] * len(self._lookups)
        blocks = [part.view(self._num_shards, -1) for part in torch.split(lengths, lengths_from)]
        counts = torch.cat([block.sum(dim=1) for block in blocks])
        _, ids, _ = torch.ops.fbgemm.permute_1D_sparse_data(self._order, counts, ids)
        grouped: list[Ids | None] = []
        begin = 0
        for lookup, shards in self._shards_of_lookups():
            if not lookup.num_shards:
                grouped.append(None)
                continue
            of_ranks = [blocks[rank] for rank in self._by_place] if lookup is self.domain_rows else blocks
            own = torch.cat([block[shards.start : shards.stop] for block in of_ranks], dim=1).view(-1)
            offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(own)
            end = begin + int(offsets[-1])
            grouped.append(Ids(ids[begin:end], offsets))
            begin = end
        return grouped

    def _shards_of_lookups(self) -> list[tuple[Lookup | RowLookup, range]]:
        """Return lookups, and which of the rank's shards they are of."""
        ends = itertools.accumulate((lookup.num_shards for lookup in self._lookups), initial=0)
        return [(lookup, range(*ends)) for lookup, ends in zip(self._lookups, itertools.pairwise(ends), strict=True)]

    def _exchanged_columns(self, pooled: torch.Tensor, clock: StepClock) -> list[torch.Tensor]:
        """Return the columns of whole tables for the rank's own samples, rank by rank, each of shape (samples, n)."""
        values_to = [count * self.whole.width for count in self._samples]
        values_from = [self._own_samples * width for width in self._widths]
        outputs = self._all_to_all("output_exchange", pooled, values_from, values_to, clock)
        blocks = zip(torch.split(outputs, values_from), self._widths, strict=True)
        return [part.view(self._own_samples, width) for part, width in blocks]

    def _reduced(self, pooled: torch.Tensor, clock: StepClock) -> torch.Tensor:
        """Return partial sums of all ranks for the rank's own samples, shape (D, samples, columns)."""
        size = len(self._samples)
        width = pooled.shape[1]
        values_to = [count * width for count in self._samples]
        sums = self._all_to_all("sum_exchange", pooled, [self._own_samples * width] * size, values_to, clock)
        return sums.view(size, self._own_samples, width)

    def _reduced_in_domains(self, pooled: torch.Tensor, clock: StepClock) -> list[torch.Tensor]:
        """Return columns of tables in domains for the rank's own samples, domain by domain."""
        assert self._domains is not None
        inside, between = self._domains
        size = self._plan.domain_size
        width = pooled.shape[1]
        added = pooled
        if size > 1:
            own = self._place_samples[self._number % size]
            values_to = [count * width for count in self._place_samples]
            sums = self._all_to_all(
                "domain_sum_exchange", pooled, [own * width] * size, values_to, clock, inside, self._peers_inside
            )
            added = sums.view(size, own, width).sum(dim=0)
        clock.work("add_sums")
        peers, widths = self._peers_between, self._domain_widths
        sent = [self._samples[peer] * width for peer in peers]
        received = [self._own_samples * columns for columns in widths]
        outputs = self._all_to_all("between_exchange", added, received, sent, clock, between, peers)
        blocks = zip(torch.split(outputs, received), widths, strict=True)
        return [part.view(self._own_samples, columns) for part, columns in blocks]

    def _backward(self, joined: torch.Tensor, of_ids: dict[str, torch.Tensor], clock: StepClock) -> None:
        """Exchange gradients of what was put out, pooled and of the rows of unpooled tables, and update weights."""
        columns = [
            sum(self._widths) if self._plan.has_whole else 0,
            self.rows.width if self.rows is not None else 0,
            sum(self._domain_widths) if self.domain_rows is not None else 0,
            self.replicas.width if self.replicas is not None else 0,
        ]
        whole, rows, domain_rows, replicas = torch.split(joined, columns, dim=1)
        sent_whole = _flat_blocks(whole, self._widths) if self._plan.has_whole else whole
        sent_rows = self._padded(rows, max(self._samples)) if self.rows is not None else rows
        sent_domains = _flat_blocks(domain_rows, self._domain_widths) if self.domain_rows is not None else domain_rows
        gradient = None
        packed = self.unpooled.packed(of_ids)
        clock.work("pack_gradients")
        if self._plan.has_whole:
            values_from = [self._own_samples * width for width in self._widths]
            values_to = [count * self.whole.width for count in self._samples]
            gradient = self._all_to_all("gradient_exchange", sent_whole, values_to, values_from, clock)
        row_gradient = None if self.rows is None else self._gathered(sent_rows, rows.numel(), clock)
        domain_gradient = None
        if self.domain_rows is not None:
            domain_gradient = self._gathered_in_domains(sent_domains, self.domain_rows.width, clock)
        unpooled_gradients = self.unpooled.exchanged_gradients(packed, clock)
        if self.replicas is not None:
            self._replicas_backward(self.replicas, replicas, clock)
        if gradient is not None:
            self.whole.backward(gradient.view(sum(self._samples), self.whole.width))
        if self.rows is not None and row_gradient is not None:
            self.rows.backward(_unpadded(row_gradient, self._samples))
        if self.domain_rows is not None and domain_gradient is not None:
            self.domain_rows.backward(_unpadded(domain_gradient, self._place_samples))
        self.unpooled.backward(unpooled_gradients)
        if self.replicas is not None:
            self._optimizer.step()
            self.replicas.operator.weights.grad = None
        clock.work("backward")

    def _gathered(self, sent: torch.Tensor, own_elements: int, clock: StepClock) -> torch.Tensor:
        """Return the gradients of row sums of all ranks, padded, shape (D, most samples, columns)."""
        size = len(self._samples)
        gathered = torch.empty(size, *sent.shape, dtype=self._dtype)
        clock.exchange(
            "sum_gradient_exchange",
            lambda: dist.all_gather_into_tensor(gathered.view(-1), sent.view(-1)),
            self._bytes([own_elements] * size),
        )
        return gathered

    def _gathered_in_domains(self, sent: torch.Tensor, width: int, clock: StepClock) -> torch.Tensor:
        """Return the gradients of the domain's row sums, padded, shape (places, most samples, columns)."""
        assert self._domains is not None
        inside, between = self._domains
        size = self._plan.domain_size
        most = max(self._place_samples)
        own = self._place_samples[self._number % size] * width
        peers = self._peers_between
        from_peers = [self._samples[peer] * width for peer in peers]
        to_peers = [self._own_samples * columns for columns in self._domain_widths]
        received = self._all_to_all("between_gradient_exchange", sent, from_peers, to_peers, clock, between, peers)
        padded = self._padded(received.view(-1, width), most) if width else received.new_zeros(most, 0)
        if size == 1:
            return padded[None]
        gathered = torch.empty(size, most, width, dtype=self._dtype)
        clock.exchange(
            "domain_gradient_exchange",
            lambda: dist.all_gather_into_tensor(gathered.view(-1), padded.view(-1), group=inside) if width else None,
            self._bytes([own] * size, self._peers_inside),
            inside,
        )
        return gathered

    def _replicas_backward(self, replicas: Lookup, gradient: torch.Tensor, clock: StepClock) -> None:
        """Leave the sum of all ranks' gradients with the dense operator."""
        replicas.backward(gradient)
        gradients = replicas.operator.weights.grad
        clock.work("replica_backward")
        size = len(self._samples)
        sent_bytes = self._bytes([gradients.numel() // size] * size)
        clock.exchange("replica_exchange", lambda: dist.all_reduce(gradients), sent_bytes)

    @property
    def _peers_inside(self) -> range:
        """Ranks of the own domain."""
        return range(self._domain * self._plan.domain_size, (self._domain + 1) * self._plan.domain_size)

    @property
    def _peers_between(self) -> range:
        """Ranks at the own place of all domains."""
        return range(self._number % self._plan.domain_size, len(self._samples), self._plan.domain_size)

    @property
    def _domain_widths(self) -> list[int]:
        """Columns that each domain adds up."""
        return [self._plan.domain_rows[peer].width for peer in self._peers_between]

    def _padded(self, block: torch.Tensor, samples: int) -> torch.Tensor:
        """Return a block as a tensor of its own with so many samples: gloo gathers equal sizes."""
        padded = torch.empty(samples, block.shape[1], dtype=self._dtype)
        padded[: len(block)] = block
        padded[len(block) :] = 0
        return padded

    def _bytes(
        self, elements: Sequence[int], ranks: Sequence[int] | None = None, element_bytes: int | None = None
    ) -> list[int]:
        """Return the bytes of elements that go to ranks, all by default, of every rank."""
        item = element_bytes or self._dtype.itemsize
        sent = [0] * len(self._samples)
        for rank, count in zip(range(len(sent)) if ranks is None else ranks, elements, strict=True):
            sent[rank] = count * item
        return sent


def _flat_blocks(block: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Return blocks of columns one after the other, as an all-to-all takes them."""
    return torch.cat([part.reshape(-1) for part in torch.split(block, list(widths), dim=1)])


def _unpadded(gathered: torch.Tensor, samples: Sequence[int]) -> torch.Tensor:
    """Return the blocks of all ranks without what was padded, shape (all samples, columns)."""
    if min(samples) == gathered.shape[1]:
        return gathered.view(sum(samples), gathered.shape[2])
    return torch.cat([block[:count] for block, count in zip(gathered, samples, strict=True)])
