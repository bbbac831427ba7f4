"""Devices that stand for all of their node, where a task is too large to look at each device.

In the averages by which `kinds.py` chooses what devices share, the devices of a node do the same: all have the same
part of all columns, and parts of equal size of what is cut by rows. Two of each node are enough: one, which may have a
heavy piece, and another for all the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuroshard.plus.linear_model import LARGE
from neuroshard.plus.sharing import Form, Place, Shared, shared
from shardgym.arrays import Floats, Ints
from shardgym.tasks.task import ShardingTask

#: Of each node.
_PER_NODE = 2


class Standins:
    """Two devices of each node, or, of smaller tasks or where devices differ in memory, all devices.

    Args:
        task: the task.
        forms: in which tables can be shared.
        length: entries of a vector.

    Attributes:
        forms: the same, as far as they concern these devices.
        memory: bytes of these devices, shape (S,).
        nothing: no tables that these devices share.
    """

    def __init__(self, task: ShardingTask, forms: Sequence[Sequence[Form]], length: int) -> None:
        domain = task.topology.fast_domain_size
        self._devices = task.num_devices
        self._length = length
        alike = len(set(task.capacity_bytes)) == 1 and task.num_devices % domain == 0
        self._domain = domain
        self._few = alike and domain > _PER_NODE and task.num_devices * task.num_tables > LARGE
        every: Ints = np.arange(task.num_devices)
        self._chosen: Ints = every[every % domain < _PER_NODE] if self._few else every
        #: Of each device, which one stands for it.
        self._of: Ints = every // domain * _PER_NODE + np.minimum(every % domain, _PER_NODE - 1) if self._few else every
        self._full = {(form.table, form.way): form for of_table in forms for form in of_table}
        self.forms: Sequence[Sequence[Form]] = forms
        if self._few:
            self.forms = [[self._part(form) for form in of_table] for of_table in forms]
        self.memory: Ints = np.array(task.capacity_bytes, dtype=np.int64)[self._chosen]
        self.nothing: Shared = shared([], (len(self._chosen), length))

    def for_all(self, values: Floats) -> Floats:
        """Return what all devices have, (..., S, n) to (..., D, n)."""
        return values.take(self._of, axis=-2) if self._few else values

    def total(self, values: Ints) -> int:
        """Return the sum over all devices, of shape (S,)."""
        return int(values[self._of].sum())

    def full(self, found: Shared) -> Shared:
        """Return what all devices share where these do."""
        if not self._few:
            return found
        return shared(
            (
                Place(self._full[table, place.form.way], self._full_first(place))
                for table, place in found.places.items()
            ),
            (self._devices, self._length),
        )

    def _full_first(self, place: Place) -> int:
        return place.first // _PER_NODE * self._domain

    def _part(self, form: Form) -> Form:
        """Return a form as far as it concerns these devices; of a node, the first ones have the largest pieces."""
        chosen = self._chosen if len(form.bytes) == self._devices else slice(_PER_NODE)
        return form._replace(vectors=form.vectors[chosen], bytes=form.bytes[chosen])
