"""How the constants of the GPU model are fitted to published rows.

Constants come in groups, and each row is predicted with those of its group. `fit` finds the constants of a group that
are nearest to a set of rows. It minimises the squares of logarithmic errors, of which outliers count little (Cauchy),
and of the distances from where the constants start, in units that say how sure we are of the start. Some constants rest
on such starts where a source is left out; what they say is in `benchmarks/published_gpu/README.md`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from predictions import Constants, ratios
from rows import Row

from shardgym.arrays import Floats
from shardgym.costs.gpu.collectives import CollectiveConstants
from shardgym.costs.gpu.exchange import LinkConstants
from shardgym.costs.gpu.host_memory import HostConstants
from shardgym.costs.gpu.kernels import KernelConstants
from shardgym.errors import import_extra

#: A group of constants: kinds of the rows that it is fitted to, its name in `Constants`, and of each constant the
#: uncertainty of its start, as a share.
GROUPS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "kernels": (
        ("fused",),
        {"gather_share": 0.05, "update_share": 0.15, "sort_share": 0.5, "lookup_clocks": 0.5, "bag_clocks": 0.7},
    ),
    "host": (
        ("host memory", "cached"),
        {"read_share": 0.2, "update_share": 0.2, "fetch_share": 0.2, "backward_us": 0.5},
    ),
    "links": (
        ("exchange",),
        {"fast_share": 0.2, "slow_share": 0.1, "fast_floor_us": 0.5, "slow_floor_us": 0.5, "ramp_us": 0.7},
    ),
    "collectives": (
        ("collective",),
        {"ring_share": 0.1, "switch_share": 0.1, "card_share": 0.1, "node_fall": 0.5, "device_us": 0.5, "node_us": 0.7,
         "ramp": 0.7, "reduce_us": 0.5, "reduce_node_us": 0.7, "reduce_ramp": 0.7},
    ),
}  # fmt: skip
#: Where fits start: L2 and gathers as others have fitted them, the rest by judgement, with all rows known. The
#: constants of the package are what came of it.
START = Constants(
    kernels=KernelConstants(gather_share=0.93, update_share=0.6, sort_share=0.3, lookup_clocks=5.0, bag_clocks=30.0),
    links=LinkConstants(fast_share=0.75, slow_share=0.9, fast_floor_us=15.0, slow_floor_us=30.0, ramp_us=25.0),
    collectives=CollectiveConstants(
        ring_share=0.8, switch_share=1.0, card_share=0.95, node_fall=0.05, device_us=2.0, node_us=3.0, ramp=2.5,
        reduce_us=20.0, reduce_node_us=15.0, reduce_ramp=5.0,
    ),
    host=HostConstants(read_share=1.0, update_share=0.6, fetch_share=0.5, backward_us=100.0),
)  # fmt: skip
#: Logarithmic error that is expected of a row.
_EXPECTED = 0.1
_DIGITS = 3


def fitted_rows(rows: Sequence[Row], group: str, without: str | None = None) -> list[Row]:
    """Return the rows that a group of constants is fitted to.

    The backward pass of January 2021 is not among them: stochastic rounding of FP16, by a kernel that has been
    rewritten since. Nor are collectives over a fabric that its source calls bad.
    """
    kinds = GROUPS[group][0]
    chosen = [row for row in rows if row.kind in kinds and row.source != without]
    said = ratios(chosen, START, rows)
    return [
        row
        for row in chosen
        if row.id in said and not ("(SR)" in row.optimizer and row.op != "forward") and not row.faulty
    ]


def fit(rows: Sequence[Row], without: str | None = None, start: Constants | None = None) -> Constants:
    """Return the constants that are nearest to rows without a source; groups that it says nothing of are `start`'s."""
    result = START
    for group, (kinds, units) in GROUPS.items():
        if start is not None and not any(row.source == without and row.kind in kinds for row in rows):
            result = dataclasses.replace(result, **{group: getattr(start, group)})
            continue
        result = _fit_group(result, group, units, fitted_rows(rows, group, without), rows)
    peaks = dataclasses.replace(result, stream_share=1.0)
    streams = [
        row
        for row in rows
        if row.source != without and ((row.op.startswith("stream read") and row.gpu != "H200") or "(DRAM)" in row.ids)
    ]
    shares = [1 / ratio for ratio in ratios(streams, peaks, rows).values()]
    return dataclasses.replace(result, stream_share=_rounded(float(np.median(shares)))) if shares else result


def fit_measured(rows: Sequence[Row]) -> Constants:
    """Return the constants of the package, with those of kernels fitted to these rows alone, from where fits start."""
    start = dataclasses.replace(Constants(), kernels=START.kernels)
    return _fit_group(start, "kernels", GROUPS["kernels"][1], fitted_rows(rows, "kernels"), rows)


def _fit_group(
    start: Constants, group: str, units: dict[str, float], chosen: Sequence[Row], rows: Sequence[Row]
) -> Constants:
    optimize: Any = import_extra("scipy.optimize", "fitting constants")
    first = np.log([getattr(getattr(start, group), name) for name in units])
    widths = np.array(list(units.values()))

    def with_values(values: Sequence[float]) -> Constants:
        named = dict(zip(units, values, strict=True))
        return dataclasses.replace(start, **{group: dataclasses.replace(getattr(start, group), **named)})

    def residuals(logs: Floats) -> Floats:
        found = ratios(chosen, with_values(np.exp(logs).tolist()), rows).values()
        return np.concatenate([np.log(np.array(list(found))) / _EXPECTED, (logs - first) / widths])

    logs = optimize.least_squares(residuals, first, loss="cauchy").x
    return with_values([_rounded(value) for value in np.exp(logs).tolist()])


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
