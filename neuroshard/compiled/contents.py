"""Contents in a compiled table."""

from __future__ import annotations

from neuroshard.compiled import exchange
from neuroshard.compiled.exchange import exchange_of
from neuroshard.compiled.head import head_of
from neuroshard.compiled.table import Table, add_all, slots_of
from neuroshard.kinds import Kinds
from neuroshard.simulator_contents import SimulatorContents
from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator import SimulatorCost
from shardgym.task import ELEMENT_BYTES


class CompiledContents(SimulatorContents):
    """The same contents, looked up and priced by compiled code.

    Args:
        kinds: the shards.
        cost: an oracle.

    Raises:
        InputError: `cost` is a judge, or does not know tasks of this kind.
    """

    def __init__(self, kinds: Kinds, cost: SimulatorCost) -> None:
        super().__init__(kinds, cost)
        networks = self._predictor.networks
        self._head = head_of(networks.best)
        self._exchanges = {name: exchange_of(params) for name, params in networks.comm.items()}

    def clear(self) -> None:
        """See `Contents`."""
        super().clear()
        self._slots = slots_of(self._keys[:1], len(self._keys))

    def add(self, contents: Ints, kinds: Ints) -> Ints:
        """See `Contents`."""
        self.make_room(len(contents))
        self.count, numbers = add_all(self.table(), self.count, contents, kinds)
        return numbers

    def totals(self, contents: Ints) -> Floats:
        """See `Contents`."""
        if not self._exchanges:  # communication is modelled
            return super().totals(contents)
        task = self.kinds.task
        return exchange.totals(
            self._exchanges["backward"], self._exchanges["forward"], self.ms[contents], self._widths[contents],
            float(task.batch_size), float(ELEMENT_BYTES[task.precision]),
        )  # fmt: skip

    def make_room(self, more: int) -> None:
        """Make room for so many more contents."""
        if self.count + more > len(self._keys):
            capacity = 2 * (self.count + more)
            self._reserve(capacity)
            self._slots = slots_of(self._keys[: self.count], capacity)

    def table(self) -> Table:
        """Return what compiled code works on, until there has to be more room."""
        return Table(
            self._slots, self._keys, self._parents, self._added, self._sums, self._widths, self.ms, self.compared_ms,
            self._kind_keys, self._latents, self._shard_widths, self._head,
        )  # fmt: skip
