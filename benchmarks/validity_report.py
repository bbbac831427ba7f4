"""What a validity study says: how costs agree with real steps, over its tasks. `benchmarks/validity.py` measures.

Tables of means over tasks, with intervals of 95 % from six tasks on (`mean_interval` of the boards): one against our
own real steps, one against TorchRec's where these were taken. Costs that predict are priced
anew; measured ones are read. The two halves of the real steps agree with each other only so well, which is the limit of
what any cost can reach with one half of them. Not a script.
"""

import itertools
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import kendalltau
from tabulate import tabulate

from shardgym import PlanCost, ShardingPlan, ShardingTask, make_cost
from shardgym.arrays import Floats
from shardgym.files import write_whole
from shardgym.leaderboard.statistics import mean_interval

PASSES = 2
#: Pairs of plans are close where real steps differ by no more.
CLOSE = 0.05
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


def agreement(own: Floats, real: Floats) -> dict[str, float]:
    """Compare a cost with real steps; both in ms by pass and plan, shape (2, plans).

    Returns:
        tau: Kendall's tau of the means over passes; for the real step itself, of its two halves.
        tau_repeat: of the cost's own two passes.
        tau_half: mean tau of the cost's passes and the real step's halves, the fair comparison with the limit.
        close: of the pairs of plans that one half of the real step has within 5 %, the share that a pass of the cost
            orders in the same way; NaN where there are none.
        regret: what the favourite takes above the best, by real steps.
        slope: relative differences of the cost per relative difference of real steps (least squares), 1 if right.
        level: mean of the cost over mean of the real step.
        spread: the costliest over the cheapest plan.
    """
    is_real = own is real or np.array_equal(own, real)
    mean = own.mean(axis=0)
    truth = real.mean(axis=0)
    repeat = tau(own[0], own[1])
    if is_real:  # each half against the other one
        halves = [(0, 1), (1, 0)]
        favourites = [real[b][real[a].argmin()] / real[b].min() - 1 for a, b in halves]
        regret = float(np.mean(favourites))
        steepness = float(np.mean([slope(real[b], real[a]) for a, b in halves]))
    else:
        halves = list(itertools.product(range(PASSES), repeat=2))
        regret = float(truth[mean.argmin()] / truth.min() - 1)
        steepness = slope(mean, truth)
    return {
        "tau": repeat if is_real else tau(mean, truth),
        "tau_repeat": repeat,
        "tau_half": float(np.mean([tau(own[a], real[b]) for a, b in halves])),
        "close": float(np.mean([close_pairs(own[a], real[b]) for a, b in halves])),
        "regret": regret,
        "slope": steepness,
        "level": float(mean.mean() / truth.mean()),
        "spread": float(mean.max() / mean.min()),
    }


def tau(a: Floats, b: Floats) -> float:
    """Return Kendall's tau-b; 0 where one side has no order."""
    found = float(kendalltau(a, b).statistic)
    return found if np.isfinite(found) else 0.0


def close_pairs(own: Floats, real: Floats) -> float:
    """Return the share of close pairs that a cost orders as real steps do; NaN where no pair is close."""
    first, second = np.triu_indices(len(real), 1)
    low = np.minimum(real[first], real[second])
    high = np.maximum(real[first], real[second])
    is_close = high <= low * (1 + CLOSE)
    same = np.sign(own[first] - own[second]) == np.sign(real[first] - real[second])
    return float(same[is_close].mean()) if is_close.any() else float("nan")


def slope(own: Floats, real: Floats) -> float:
    """Return the least-squares slope of relative costs over relative real times."""
    relative = real / real.mean() - 1
    return float((own / own.mean() - 1) @ relative / (relative @ relative)) if relative.any() else 0.0


def _text(value: Any) -> Any:
    """Return a number as text; a list as a mean with its interval, or as a range."""
    if isinstance(value, float):
        return f"{value:.2f}"
    if not isinstance(value, list):
        return value
    first, *ends = [f"{number:.2f}" for number in value]
    return f"{first} [{', '.join(ends)}]" if ends else first
