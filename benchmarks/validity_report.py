"""What a validity study says: how costs agree with real steps, over its tasks. `benchmarks/validity.py` measures.

Tables of means over tasks, with intervals of 95 % as on boards. Costs that predict are priced anew; measured ones are
read. The agreement of the two halves of the real steps is the limit for any cost that is
compared with one of them. Not a script.
"""

import itertools
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from shardgym import ShardingPlan, ShardingTask, make_cost
from shardgym.arrays import Floats
from shardgym.costs.simulator.model_card import CLOSE
from shardgym.files import write_whole
from shardgym.leaderboard.statistics import mean_interval

PASSES = 2
#: Ends the names of a study's files.
ENDING = ".json.xz"
#: Columns of the tables of means.
_MEANS = ("tau", "tau_half", "behind", "close", "regret", "slope", "level")


def load(path: Path) -> dict[str, Any]:
    """Return what a file of a study holds: the task, its plans, and what was measured of them."""
    content: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return content


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a file of a study, whole."""
    write_whole(path, lzma.compress(json.dumps(content).encode()))


def tables_of(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of a folder by their titles, one for each number of devices."""
    tasks: dict[int, list[dict[str, Floats]]] = {}
    for path in sorted(out.glob(f"*{ENDING}")):
        content = load(path)
        ms = measured(content["done"])
        if ms:
            task = ShardingTask.from_dict(content["task"])
            ms |= predicted(task, [ShardingPlan.from_dict(plan) for plan in content["plans"]])
            tasks.setdefault(task.num_devices, []).append(ms)
    return {f"{devices} devices, {len(found)} tasks": by_cost(found) for devices, found in sorted(tasks.items())}


def measured(done: dict[str, list[float]]) -> dict[str, Floats]:
    """Return the ms of all plans in both passes, shape (2, plans), by what was measured; {} while a part is missing."""
    launches = sum(unit.startswith("real/") for unit in done)
    if launches < PASSES or launches % PASSES or any(f"fbgemm/{n}" not in done for n in range(PASSES)):
        return {}
    real = np.array([done[f"real/{n}"] for n in range(launches)])
    return {
        "real": real.reshape(PASSES, launches // PASSES, -1).mean(axis=1),
        "fbgemm": np.array([done[f"fbgemm/{n}"] for n in range(PASSES)]),
    }


def predicted(task: ShardingTask, plans: Sequence[ShardingPlan]) -> dict[str, Floats]:
    """Return the ms of every plan by cost models, which say the same in both passes: (2, plans), NaN where refused."""
    per_ms = task.topology.intra_bandwidth / 1000
    rating = {"compute_device": "cpu", "intra_host_bw": per_ms, "inter_host_bw": per_ms}  # otherwise those of GPUs
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "simulator": ("simulator", {}),
        "simulator, judge": ("simulator", {"role": "judge"}),
        "roofline": ("roofline", {}),
        "torchrec_rating": ("torchrec_rating", rating),
    }
    costs = {name: make_cost(model, **settings).evaluate(task, plans) for name, (model, settings) in models.items()}
    ms = {name: [c.total_ms if c.feasible else np.nan for c in of_plans] for name, of_plans in costs.items()}
    return {name: np.tile(of_plans, (PASSES, 1)) for name, of_plans in ms.items()}


def by_cost(tasks: Sequence[dict[str, Floats]]) -> list[dict[str, Any]]:
    """Return a row per cost, the real step first: means over tasks of `agreement` on the plans that the cost knows.

    "behind" is by how much `tau_half` is below that of the step itself, with an interval from six tasks on.
    """
    rows = []
    for name in tasks[0]:
        of_tasks = []
        for ms in tasks:
            known = np.isfinite(ms[name]).all(axis=0)
            real = ms["real"][:, known]
            found = agreement(ms[name][:, known], real)
            of_tasks.append(found | {"behind": agreement(real, real)["tau_half"] - found["tau_half"]})
        row: dict[str, Any] = {"cost": name}
        for key in _MEANS:
            values = np.array([of_task[key] for of_task in of_tasks])
            values = values[np.isfinite(values)]
            row[key] = float(values.mean()) if len(values) else None
        interval = mean_interval(np.array([of_task["behind"] for of_task in of_tasks]))
        if interval is not None:
            row |= {"behind, from": interval.low, "to": interval.high}
        rows.append(row)
    return rows


def agreement(own: Floats, real: Floats) -> dict[str, float]:
    """Compare a cost with real steps; both in ms by pass and plan, shape (2, plans).

    Returns:
        tau: Kendall's tau of the means over passes; for the real step itself, of its two halves.
        tau_half: mean tau of the cost's passes and the real step's halves, the fair comparison with the limit.
        close: of the pairs of plans that one half of the real step has within 5 %, the share that a pass of the cost
            orders in the same way; NaN where there are none.
        regret: what the favourite takes above the best, by real steps.
        slope: relative differences of the cost per relative difference of real steps (least squares), 1 if right.
        level: mean of the cost over mean of the real step.
    """
    is_real = np.array_equal(own, real)
    halves = [(0, 1), (1, 0)] if is_real else list(itertools.product(range(PASSES), repeat=2))
    # Each half of the real step is compared with the other half, and a cost as a whole.
    pairs = [(real[a], real[b]) for a, b in halves] if is_real else [(own.mean(axis=0), real.mean(axis=0))]
    close = [alike for a, b in halves for alike in close_pairs(own[a], real[b])]
    return {
        "tau": float(np.mean([tau(*pair) for pair in pairs])),
        "tau_half": float(np.mean([tau(own[a], real[b]) for a, b in halves])),
        "close": float(np.mean(close)) if close else np.nan,
        "regret": float(np.mean([truth[guess.argmin()] / truth.min() - 1 for guess, truth in pairs])),
        "slope": float(np.mean([slope(*pair) for pair in pairs])),
        "level": float(own.mean() / real.mean()),
    }


def tau(own: Floats, real: Floats) -> float:
    """Return Kendall's tau-b of the costs of the same plans; 0 where one side has no order."""
    found = float(kendalltau(own, real).statistic)
    return found if np.isfinite(found) else 0.0


def close_pairs(own: Floats, real: Floats) -> list[bool]:
    """Return for each pair of plans that differ by less than `CLOSE` in reality whether a cost orders it alike."""
    pairs = itertools.combinations(range(len(real)), 2)
    close = [(a, b) for a, b in pairs if abs(real[a] / real[b] - 1) < CLOSE]
    return [bool((own[a] - own[b]) * (real[a] - real[b]) > 0) for a, b in close]


def slope(own: Floats, real: Floats) -> float:
    """Return the least-squares slope of relative costs over relative real times."""
    relative = real / real.mean() - 1
    return float((own / own.mean() - 1) @ relative / (relative @ relative)) if relative.any() else 0.0
