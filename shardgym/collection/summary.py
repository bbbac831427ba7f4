"""What a collection holds: counts, how repeats differ, and where the files are."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardgym.collection.setup import KINDS, Kind
from shardgym.costs.simulator.layout import CommRow, ComputeRow

Rows = Sequence[ComputeRow] | Sequence[CommRow]


@dataclasses.dataclass(frozen=True)
class RepeatNoise:
    """How two measurements of the same thing differ: forward plus backward, of the slowest device for exchanges.

    Attributes:
        pairs: samples that were measured twice.
        cv: coefficient of variation, root mean square over the pairs.
        mape: mean absolute percentage error of one measurement against the other, as a share.
    """

    pairs: int
    cv: float
    mape: float

    def __str__(self) -> str:
        return f"repeats: CV {100 * self.cv:.1f} %, MAPE {100 * self.mape:.1f} % over {self.pairs} pairs"


@dataclasses.dataclass(frozen=True)
class Summary:
    """The state of a folder.

    Attributes:
        counts: measurements by kind and role, repeats included.
        noise: by kind; a kind without pairs is missing.
        failed: reasons by sample, of what could not be measured.
        missing: measurements that were asked for and are not there.
        measured: by kind, how many were made by this run.
        minutes: by kind, how long this run measured it.
        files: paths by content.
        notices: sentences that a reader must know.
    """

    counts: dict[str, dict[str, int]]
    noise: dict[str, RepeatNoise]
    failed: dict[str, str]
    missing: int
    measured: dict[str, int]
    minutes: dict[str, float]
    files: dict[str, str]
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data, with rates."""
        return {**dataclasses.asdict(self), "per_minute": self.rates()}

    def rates(self) -> dict[str, float]:
        """Return samples per minute of this run by kind."""
        return {kind: self.measured[kind] / self.minutes[kind] for kind in self.measured if self.minutes[kind] > 0}

    def lines(self) -> list[str]:
        """Return it as text."""
        return [
            *(self._kind_line(kind) for kind in KINDS if kind in self.counts),
            *(f"failed: {name}: {reason}" for name, reason in list(self.failed.items())[:3]),
            *([f"{len(self.failed)} samples failed; the same command tries them again"] if self.failed else []),
            *([f"{self.missing} samples are missing; the same command continues"] if self.missing else []),
            *self.notices,
            *(f"{what}: {path}" for what, path in self.files.items()),
        ]

    def _kind_line(self, kind: Kind) -> str:
        roles = ", ".join(f"{role} {count}" for role, count in self.counts[kind].items())
        rate, noise = self.rates().get(kind), self.noise.get(kind)
        parts = [f"{kind}: {sum(self.counts[kind].values())} ({roles})"]
        parts += [f"{rate:.0f} per minute"] if rate else []
        parts += [str(noise)] if noise else []
        return "; ".join(parts)


def role_counts(rows: Iterable[ComputeRow | CommRow]) -> dict[str, int]:
    """Return rows per role."""
    return dict(Counter(row.role for row in rows))


def repeat_noise(rows: Rows) -> RepeatNoise | None:
    """Compare the first measurement of every sample with its repeat; None without pairs."""
    totals = {row.sample_id: _total(row) for row in rows}
    pairs = [
        (totals[first], totals[row.sample_id])
        for row in rows
        if row.repeat == 1 and (first := row.sample_id.removesuffix("/1") + "/0") in totals
    ]
    if not pairs:
        return None
    first, second = np.array(pairs).T
    cv = float(np.sqrt((np.log(first / second) ** 2).mean() / 2))
    return RepeatNoise(len(pairs), cv, float(np.abs(first / second - 1).mean()))


def _total(row: ComputeRow | CommRow) -> float:
    return float((np.array(row.forward_ms) + np.array(row.backward_ms)).max())
