"""Which all-to-alls are measured: widths at all degrees of balance, start offsets at all degrees of skew.

Widths follow NeuroShard (comm_bench.py): the widest table first, each to any device with probability p, else to the
one with the fewest columns, p being drawn anew for every sample.
"""

from __future__ import annotations

from typing import NamedTuple

from shardgym.collection.contents import may_have
from shardgym.collection.placements import DIMS
from shardgym.collection.setup import Role, Setup
from shardgym.collection.stream import Stream
from shardgym.costs.collectives.jobs import Exchange
from shardgym.pools import load_pool
from shardgym.records import canonical_json, sha256
from shardgym.task import ELEMENT_BYTES, Precision

#: Tables per device, from sparse to as many as the suites have.
_TABLES_PER_DEVICE = (1, 15)
#: Share of samples with an aligned start, and the range that the latest start is drawn from, in ms.
_ALIGNED = 0.2
_LATEST_MS = (0.2, 160.0)
_EMPTY = 0.05
#: Offsets are whole multiples of this many ms, as in the measured cost.
_OFFSET_STEP_MS = 0.01


class ExchangeSpec(NamedTuple):
    """One sample: the exchange of pooled values with start offsets, and that of gradients with an aligned start.

    Attributes:
        widths: columns of each device's pooled output, length D.
        offsets_ms: how much later than the first each device starts forward, length D.
        batch_size: samples over all devices.
        precision: of the values.
    """

    widths: tuple[int, ...]
    offsets_ms: tuple[float, ...]
    batch_size: int
    precision: Precision

    def exchange(self, *, backward: bool) -> Exchange:
        """Return one of the two exchanges."""
        offsets = (0.0,) * len(self.widths) if backward else self.offsets_ms
        return Exchange(self.widths, self.batch_size, self.precision, offsets, backward)

    @property
    def element_bytes(self) -> int:
        """Bytes of one value."""
        return ELEMENT_BYTES[self.precision]

    @property
    def digest(self) -> str:
        """Identity of the sample."""
        return sha256(canonical_json([self.widths, self.offsets_ms, self.batch_size, self.precision]))


class ExchangeSampler:
    """Draws exchanges; the oracle's and the judge's are disjoint.

    Args:
        setup: batch and precision.
        seed: of all draws.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self._precision, self._seed = setup.precision, seed
        self._batch_size = load_pool(setup.pool).batch_size // setup.scale

    def exchange(self, role: Role, number: int, devices: int) -> ExchangeSpec:
        """Return a sample over so many devices."""
        rng = Stream(self._seed, "comm", role, number, devices)
        while True:
            widths = _draw_widths(rng, devices)
            spec = ExchangeSpec(widths, _draw_offsets(rng, devices), self._batch_size, self._precision)
            if may_have(role, spec.digest):
                return spec


def _draw_widths(rng: Stream, devices: int) -> tuple[int, ...]:
    dims = DIMS[: rng.whole(1, len(DIMS))]
    drawn = [rng.choice(dims) for _ in range(devices * rng.whole(*_TABLES_PER_DEVICE))]
    anywhere = rng.uniform()
    widths = [0] * devices
    for dim in sorted(drawn, reverse=True):
        least = widths.index(min(widths))
        widths[rng.whole(0, devices - 1) if rng.chance(anywhere) else least] += dim
    if rng.chance(_EMPTY):
        widths[rng.whole(0, devices - 1)] = 0
    return tuple(widths) if any(widths) else (dims[0],) * devices


def _draw_offsets(rng: Stream, devices: int) -> tuple[float, ...]:
    if rng.chance(_ALIGNED):
        return (0.0,) * devices
    low, high = _LATEST_MS
    latest = low * (high / low) ** rng.uniform()
    steps = [int(rng.uniform(0, latest) / _OFFSET_STEP_MS) for _ in range(devices)]
    return tuple(round((step - min(steps)) * _OFFSET_STEP_MS, 2) for step in steps)
