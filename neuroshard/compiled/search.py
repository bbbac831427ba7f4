"""The inner search, compiled."""

from __future__ import annotations

import numpy as np

from neuroshard.budget import Budget
from neuroshard.compiled.advance import advance
from neuroshard.compiled.contents import CompiledContents
from neuroshard.compiled.lanes import Lanes, Limits, lanes_for
from neuroshard.cutoff import Cutoff
from neuroshard.prefixes import Prefixes
from neuroshard.scoring import Placed, best_placements
from shardgym.arrays import Floats, Ints

#: Steps between looks at the clock.
_STEPS = 64


class CompiledGridSearch:
    """Does what `GridSearch` does.

    Args:
        contents: prices devices.
        caps: largest columns of a device, one per value of the grid, ascending, shape (M,).
        budget: of time.
    """

    def __init__(self, contents: CompiledContents, caps: Floats, budget: Budget) -> None:
        self._contents, self._caps, self._budget = contents, caps, budget
        kinds = contents.kinds
        memory: Ints = np.array(kinds.task.topology.memory_bytes, dtype=np.int64)
        self._limits = Limits(caps, memory, kinds.columns, kinds.bytes)

    def place(self, sequences: Ints, cutoff: Cutoff) -> Placed:
        """See `GridSearch`."""
        self._contents.trim()
        tree = Prefixes(sequences)
        lanes = lanes_for(len(tree.rows) * len(self._caps), len(self._limits.memory), len(self._caps))
        used = self._advance(lanes, tree)
        return best_placements(
            self._contents, lanes.rows[:used], lanes.low[:used], lanes.contents[:used], tree.row_of, cutoff
        )

    def _advance(self, lanes: Lanes, tree: Prefixes) -> int:
        """Place all shards in all lanes; return how many lanes are complete."""
        step, used, contents = 0, 1, self._contents
        rows, forks = np.ascontiguousarray(tree.rows), tree.fork_table()
        while used and step < rows.shape[1]:
            self._budget.check()
            contents.make_room(2 * len(lanes.rows))
            step, used, contents.count = advance(
                lanes, used, contents.table(), contents.count, self._limits, rows, forks, step,
                min(step + _STEPS, rows.shape[1]),
            )  # fmt: skip
        return used
