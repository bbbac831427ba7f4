"""What a validity study says: how costs agree with real steps, over its tasks. `benchmarks/validity.py` measures.

Tables of means over tasks, with intervals of 95 % from six tasks on (`mean_interval` of the boards): one against our
own real steps, one against TorchRec's where these were taken. Costs that predict are priced
anew; measured ones are read.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cost_agreement import PASSES, agreement
from tabulate import tabulate

from shardgym import PlanCost, ShardingPlan, ShardingTask, make_cost
from shardgym.arrays import Floats
from shardgym.files import write_whole
from shardgym.leaderboard.statistics import mean_interval

#: Ends the names of a study's files.
ENDING = ".json.xz"
#: Our own real step, and TorchRec's.
REAL, TORCHREC = "real", "torchrec"
#: Columns of the tables of means.
_MEANS = ("tau", "tau_half", "behind", "close", "regret", "slope", "level")


class MeasuredTask(NamedTuple):
    """A task of a study whose two passes are complete."""

    task: ShardingTask
    ms: dict[str, Floats]  #: of every plan in both passes, shape (2, plans), by what was measured


def print_report(out: Path, *, as_json: bool) -> None:
    """Print the tables of a folder, or all of them as JSON."""
    tasks = [found for path in sorted(out.glob(f"*{ENDING}")) if (found := read(path))]
    tables: dict[str, list[dict[str, Any]]] = {}
    for devices in sorted({found.task.num_devices for found in tasks}):
        of_devices = [found for found in tasks if found.task.num_devices == devices]
        for truth in (REAL, TORCHREC):
            if with_truth := [found for found in of_devices if truth in found.ms]:
                tables[f"{devices} devices, against {truth} steps"] = by_cost(with_truth, truth)
    if as_json:
        print(json.dumps(tables, indent=1))
        return
    for title, rows in tables.items():
        shown = [{key: _text(value) for key, value in row.items()} for row in rows]
        print(f"{title}:\n\n{tabulate(shown, headers='keys', tablefmt='github', disable_numparse=True)}\n")


def load(path: Path) -> dict[str, Any]:
    """Return what a file of a study holds: the task, its plans, and what was measured of them."""
    content: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return content


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a file of a study, whole."""
    write_whole(path, lzma.compress(json.dumps(content).encode()))


def read(path: Path) -> MeasuredTask | None:
    """Return a task with what was measured and with the costs of today's models; None while a part is missing."""
    content = load(path)
    done: dict[str, Any] = content["done"]
    launches = sum(unit.startswith(f"{REAL}/") for unit in done)
    if launches < PASSES or launches % PASSES or any(f"fbgemm/{n}" not in done for n in range(PASSES)):
        return None
    task = ShardingTask.from_dict(content["task"])
    plans = [ShardingPlan.from_dict(plan) for plan in content["plans"]]
    real = np.array([done[f"{REAL}/{n}"] for n in range(launches)])
    ms: dict[str, Floats] = {REAL: real.reshape(PASSES, launches // PASSES, -1).mean(axis=1)}
    if all(f"{TORCHREC}/{n}" in done for n in range(PASSES)):
        ms[TORCHREC] = np.array([done[f"{TORCHREC}/{n}"] for n in range(PASSES)])
    measured = [[PlanCost.from_dict(cost) for cost in done[f"fbgemm/{n}"]] for n in range(PASSES)]
    ms["fbgemm"] = np.array([[cost.total_ms for cost in half] for half in measured])
    ms |= predicted(task, plans)
    return MeasuredTask(task, ms)


def predicted(task: ShardingTask, plans: Sequence[ShardingPlan]) -> dict[str, Floats]:
    """Return the ms of every plan by cost models, which say the same in both passes: (2, plans) each."""
    per_ms = task.topology.intra_bandwidth / 1000
    rating = {"compute_device": "cpu", "intra_host_bw": per_ms, "inter_host_bw": per_ms}
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "simulator": ("simulator", {}),
        "simulator, judge": ("simulator", {"role": "judge"}),
        "roofline": ("roofline", {}),
        "torchrec_rating": ("torchrec_rating", rating),
    }
    costs = {name: make_cost(model, **settings).evaluate(task, plans) for name, (model, settings) in models.items()}
    return {name: np.tile([cost.total_ms for cost in of_plans], (PASSES, 1)) for name, of_plans in costs.items()}


def by_cost(tasks: Sequence[MeasuredTask], truth: str) -> list[dict[str, Any]]:
    """Return a row per cost: means over tasks against real steps, `truth` first, with intervals where there are any.

    Columns are those of `agreement`, and "behind": by how much `tau_half` is below that of the step itself.
    """
    names = [truth, *(name for name in tasks[0].ms if name not in (REAL, TORCHREC))]
    if truth == TORCHREC:
        names.insert(1, REAL)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for of_task in tasks:
        real = of_task.ms[truth]
        limit = agreement(real, real)["tau_half"]
        for name in names:
            row = agreement(of_task.ms[name], real)
            found[name].append({**row, "behind": limit - row["tau_half"]})
    rows = []
    for name, of_tasks in found.items():
        row: dict[str, Any] = {"cost": name, "tasks": len(tasks)}
        for key in _MEANS:
            values = np.array([of_task[key] for of_task in of_tasks])
            values = values[np.isfinite(values)]
            row[key] = [float(values.mean()), *(mean_interval(values) or ())] if len(values) else None
        rows.append(row)
    return rows


def _text(value: Any) -> Any:
    """Return a number as text; a list as a mean with its interval, or as a range."""
    if isinstance(value, float):
        return f"{value:.2f}"
    if not isinstance(value, list):
        return value
    first, *ends = [f"{number:.2f}" for number in value]
    return f"{first} [{', '.join(ends)}]" if ends else first
