"""What a collective group is asked to exchange."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.costs.collectives.splits import samples_per_device
from shardgym.task import ELEMENT_BYTES, Precision


class Exchange(NamedTuple):
    """One all-to-all of pooled values.

    Attributes:
        widths: columns of each device's pooled output, length D.
        batch_size: samples over all devices.
        precision: of the values.
        offsets_ms: how much later than the first each device starts, length D; zeros for an aligned start.
        backward: whether gradients go back instead of values forward.
    """

    widths: tuple[int, ...]
    batch_size: int
    precision: Precision
    offsets_ms: tuple[float, ...]
    backward: bool

    def elements(self) -> npt.NDArray[np.int64]:
        """Return how many elements device i sends to device j, shape (D, D)."""
        samples = samples_per_device(self.batch_size, len(self.widths))
        forward = np.outer(np.array(self.widths, dtype=np.int64), samples)
        return forward.T if self.backward else forward

    def buffer_bytes(self) -> int:
        """Bytes of all send and receive buffers."""
        return 2 * self.batch_size * sum(self.widths) * ELEMENT_BYTES[self.precision]


class Timing(NamedTuple):
    """One rank's part of timing an exchange: elements to and from every rank, and its start."""

    send: list[int]
    receive: list[int]
    precision: Precision
    offset_ms: float
    warmups: int
    iterations: int


class Move(NamedTuple):
    """One rank's part of carrying out an exchange: the values it sends, in the order of ranks."""

    values: npt.NDArray[Any]
    send: list[int]
    receive: list[int]


def timings(exchange: Exchange, warmups: int, iterations: int) -> list[Timing]:
    """Return the part of every rank."""
    elements = exchange.elements()
    return [
        Timing(elements[d].tolist(), elements[:, d].tolist(), exchange.precision, offset, warmups, iterations)
        for d, offset in enumerate(exchange.offsets_ms)
    ]
