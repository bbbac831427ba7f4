"""What `tools/gpu_day.py` measured on a GPU, beside what the model says of it and beside a second measurement.

Kernels: the constants of the model fitted to those that were measured, with published ones as the test. Plans: the
compute of each device as measured, and by the cost `gpu`. Memory: peaks of complete steps, and what `StepMemory` says.
"""

import csv
import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from fit import fit_measured
from predictions import Constants, ratios
from rows import Row, card_of, gpu_name, read_rows
from scipy.stats import kendalltau
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.costs.base import make_cost
from shardgym.costs.plan_cost import COMPUTE_COLUMNS
from shardgym.errors import InputError
from shardgym.evaluation.result import Result, read_records
from shardgym.evaluation.store import read_task

_GIB = 2**30


def tables_of(folder: Path, published: Sequence[Row]) -> str:
    """Return as Markdown what a folder of `tools/gpu_day.py` holds; raises `InputError` where that is nothing."""
    made = []
    if (folder / "kernels.csv").exists():
        made.append(f"### Kernels\n\n{kernel_tables(read_rows(folder / 'kernels.csv'), published)}")
    if (folder / "plans").exists():
        made.append(f"### Compute of devices in plans\n\n{plan_tables(folder / 'plans', folder / 'plans-again')}")
    if (folder / "memory.csv").exists():
        made.append(f"### Peaks of memory\n\n{memory_table(folder / 'memory.csv')}")
    if not made:
        raise InputError(
            "expected kernels.csv, plans or memory.csv, as tools/gpu_day.py writes them, archives unpacked"
        )
    return "\n\n".join(made)


def percent(values: Sequence[float]) -> str:
    """Return the median of shares."""
    return f"{100 * statistics.median(values):.0f} %" if values else "-"


def _github(rows: Sequence[Sequence[object]], columns: Sequence[str]) -> str:
    return tabulate(rows, columns, tablefmt="github", disable_numparse=True)


def kernel_tables(measured: Sequence[Row], published: Sequence[Row]) -> str:
    """Return constants fitted to measured kernels alone, and errors on these and, as a test, on published ones."""
    tested = [row for row in published if row.kind == "fused"]
    if not ratios(measured, Constants(), measured):
        raise InputError("no row is a kernel of a known card: expected kernels.csv as tools/gpu_day.py writes it")
    fitted = fit_measured(measured)
    by: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for name, rows in (("measured, fitted to", measured), ("published, left out", tested)):
        package = ratios(rows, Constants(), rows)
        own = ratios(rows, fitted, rows)
        for row in rows:
            if row.id in own:
                by[name, row.card, row.op.split()[0]].append((abs(package[row.id] - 1), abs(own[row.id] - 1)))
    lines = [[*key, len(off), *(percent(errors) for errors in zip(*off, strict=True))] for key, off in by.items()]
    columns = ["rows", "card", "pass", "number", "error, constants of the package", "error, constants fitted here"]
    constants = json.dumps(dataclasses.asdict(fitted.kernels), indent=1)
    return f"{_github(lines, columns)}\n\n```json\n{constants}\n```"


class _Plan(NamedTuple):
    """Forward and backward compute of the devices of a plan that hold something, in ms, shape (D, 2)."""

    task: int
    solver: str
    measured: Floats
    predicted: Floats
    again: Floats | None  #: measured a second time


def plan_tables(folder: Path, again: Path) -> str:
    """Return compute by solver as measured and by `gpu`, errors of `gpu` and of a second measurement, and orders."""
    first = _records(folder)
    second = _records(again) if again.exists() else {}
    if not first:
        raise InputError(f"{folder} has no plan with measured costs")
    tag = next(iter(first.values())).hardware
    card = card_of(gpu_name(tag))
    if not card:
        raise InputError(f"plans were measured on {tag}: expected a card that the model knows")
    plans = []
    with make_cost("gpu", hardware=card) as model:
        for key, result in first.items():
            measured = _compute(result)
            held = measured[:, 0] > 0
            (predicted,) = model.evaluate(read_task(result, folder), [result.plan])
            repeat = _compute(second[key])[held] if key in second else None
            of_model = predicted.per_device[held][:, COMPUTE_COLUMNS]
            plans.append(_Plan(result.task_index, result.solver, measured[held], of_model, repeat))
    solvers = dict.fromkeys(plan.solver for plan in plans)
    lines = [_line(name, [plan for plan in plans if plan.solver == name], slice(2)) for name in solvers]
    passes = {"all, forward": slice(1), "all, backward": slice(1, 2), "all": slice(2)}
    lines += [_line(name, plans, columns) for name, columns in passes.items()]
    columns = ["plans of", "devices", "measured ms", f"gpu ({card}) ms", "error", "error of a repeat"]
    order = (
        "Kendall's tau between the slowest devices of a task's plans and those measured, mean of the tasks: "
        f"gpu {_tau(plans, 'predicted')}, a repeat {_tau([plan for plan in plans if plan.again is not None], 'again')}."
    )
    return f"{_github(lines, columns)}\n\n{order}"


def _records(folder: Path) -> dict[object, Result]:
    return {result.key: result for result in read_records(folder / "records.jsonl") if result.status == "ok"}


def _compute(result: Result) -> Floats:
    assert result.cost is not None  # as the result is ok
    return result.cost.per_device[:, COMPUTE_COLUMNS]


def _line(name: str, plans: Sequence[_Plan], columns: slice) -> list[object]:
    """Return medians over the devices of plans, of the sum of some columns."""
    measured, predicted = (
        np.concatenate([getattr(plan, what)[:, columns].sum(axis=1) for plan in plans])
        for what in ("measured", "predicted")
    )
    off = [
        np.abs(plan.again[:, columns].sum(axis=1) / plan.measured[:, columns].sum(axis=1) - 1)
        for plan in plans
        if plan.again is not None
    ]
    return [
        name, len(measured), f"{np.median(measured):.3f}", f"{np.median(predicted):.3f}",
        percent(np.abs(predicted / measured - 1).tolist()), percent(np.concatenate(off).tolist() if off else []),
    ]  # fmt: skip


def _tau(plans: Sequence[_Plan], what: Literal["predicted", "again"]) -> str:
    """Return the mean over tasks that have several plans with different times; "-" where there is none."""
    found = []
    for task in dict.fromkeys(plan.task for plan in plans):
        slowest = [
            (plan.measured.sum(axis=1).max(), getattr(plan, what).sum(axis=1).max())
            for plan in plans
            if plan.task == task
        ]
        found.append(float(kendalltau(*zip(*slowest, strict=True)).statistic))
    known = [tau for tau in found if not math.isnan(tau)]
    return f"{statistics.fmean(known):.2f}" if known else "-"


def memory_table(path: Path) -> str:
    """Return a line for each step: bytes of weights and states, bytes expected besides, and the peak."""
    lines = []
    shares = []
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        state, step, peak = (int(row[f"{what}_bytes"]) for what in ("expected_state", "expected_step", "peak"))
        shares.append((state + step) / peak)
        sizes = [f"{size / _GIB:.2f}" for size in (state, step, state + step, peak)]
        lines.append([row["batch_size"], row["shards"], row["columns"], *sizes, f"{shares[-1]:.2f}"])
    columns = ["batch", "shards", "columns", "state GiB", "step GiB", "both", "measured peak GiB", "both over measured"]
    spread = f"{min(shares):.2f} to {max(shares):.2f}, median {statistics.median(shares):.2f}" if shares else "no step"
    return f"{_github(lines, columns)}\n\nExpected over measured: {spread}."
