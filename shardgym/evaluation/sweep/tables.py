"""What a sweep found, as rows: step time, memory left and bound of each machine, and what samples cost there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tabulate import tabulate

from shardgym.evaluation.sweep.results import MachineResult
from shardgym.tasks.topology import GIB

_SECONDS_PER_HOUR = 3600.0


class DenseTime(NamedTuple):
    """What the rest of the model takes in a step of one device.

    Attributes:
        ms: milliseconds, forward and backward.
        samples: for so many samples of a device, and proportionally for others; None where it is always the same.
    """

    ms: float
    samples: int | None = None

    def of(self, samples: float) -> float:
        """Return milliseconds for so many samples of a device."""
        return self.ms if self.samples is None else self.ms * samples / self.samples


@dataclass(frozen=True)
class Economics:
    """What is known besides embeddings, by GPU; a GPU that is not named has none.

    Attributes:
        dense: time of the rest of the model. A step is embeddings plus this: no overlap is counted.
        price: of one GPU for an hour, in any currency.
    """

    dense: Mapping[str, DenseTime] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)

    def step_ms(self, result: MachineResult) -> float | None:
        """Return the time of a whole step; None where the rest of the model is not known, or nothing fits."""
        if result.embedding_ms is None or result.gpu not in self.dense:
            return None
        return result.embedding_ms + self.dense[result.gpu].of(result.batch_size / result.devices)

    def samples_per_s(self, result: MachineResult) -> float | None:
        """Return samples per second of whole steps."""
        step_ms = self.step_ms(result)
        return None if step_ms is None else result.batch_size / step_ms * 1e3

    def per_billion(self, result: MachineResult) -> float | None:
        """Return the price of training on 10**9 samples."""
        rate = self.samples_per_s(result)
        if rate is None or result.gpu not in self.price:
            return None
        return 1e9 / rate / _SECONDS_PER_HOUR * self.price[result.gpu] * result.devices


def to_dict(result: MachineResult, economics: Economics) -> dict[str, Any]:
    """Return what is known of a machine, for JSON."""
    derived = {
        "bound_by": result.bound_by or None,
        "step_ms": economics.step_ms(result),
        "samples_per_s": economics.samples_per_s(result),
        "price_per_billion_samples": economics.per_billion(result),
    }
    return result.to_dict() | derived


def render(results: Sequence[MachineResult], economics: Economics) -> str:
    """Return a table of machines, and below it why some have no plan."""
    headers = ["GPU", "devices", "batch", "embeddings", "left on the fullest", "bound by"]
    headers += ["step", "samples/s"] if economics.dense else []
    headers += ["per 10^9 samples"] if economics.price else []
    rows = []
    for result in results:
        row = [result.gpu, str(result.devices), f"{result.batch_size:,}", *_plan_cells(result)]
        if economics.dense:
            row.append(_or_blank(economics.step_ms(result), "{:.3f} ms"))
            row.append(_or_blank(economics.samples_per_s(result), "{:,.0f}"))
        if economics.price:
            row.append(_or_blank(economics.per_billion(result), "{:,.2f}"))
        rows.append(row)
    aligned = ("left", *["right"] * 4, "left", *["right"] * (len(headers) - 6))
    table = tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True, colalign=aligned)
    why = [f"{_named(result)}: {result.reason}" for result in results if result.reason is not None]
    notes = dict.fromkeys(note for result in results for note in result.notes)
    return "\n".join([table, *why, *(f"note: {note}" for note in notes)])


def one_line(result: MachineResult) -> str:
    """Return what a machine takes, for a log."""
    if result.embedding_ms is None:
        return f"{_named(result)}: no plan: {result.reason}"
    embeddings, left, bound = _plan_cells(result)
    return f"{_named(result)}: {embeddings}, {left} left, bound by {bound}; planned in {result.solve_time_s:.1f} s"


def _plan_cells(result: MachineResult) -> list[str]:
    if result.embedding_ms is None or result.memory_left_bytes is None or result.savings is None:
        return ["no plan" if result.status == "infeasible" else "failed", "", ""]
    bound = result.bound_by
    if bound != "start-up":
        bound += f" (-{100 * getattr(result.savings, bound) / result.embedding_ms:.0f} %)"
    return [f"{result.embedding_ms:.3f} ms", f"{result.memory_left_bytes / GIB:.1f} GiB", bound]


def _named(result: MachineResult) -> str:
    return f"{result.devices} x {result.gpu}"


def _or_blank(value: float | None, shape: str) -> str:
    return "" if value is None else shape.format(value)
