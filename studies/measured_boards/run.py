"""How costs rank plans that were measured for boards: tau per task, level, and the pairs that are close.

    python studies/measured_boards/run.py [COST ...]

COST is a name with settings, e.g. `simulator,role=judge`. Plans of a task are compared within one board, as
sessions differ in pace.
"""

from __future__ import annotations

import itertools
import json
import lzma
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau
from tabulate import tabulate

from shardgym import ShardingPlan, ShardingTask, make_cost
from shardgym.arrays import Floats
from shardgym.costs.link_model import shipped_model
from shardgym.costs.links import pooled_widths, samples_per_device
from shardgym.task import ELEMENT_BYTES

HERE = Path(__file__).parent
#: Relative difference of measured totals below which two plans are close.
CLOSE = 0.05
COSTS = ("roofline", "simulator", "simulator,role=judge")


def read(name: str) -> Any:
    """Return what a compressed file of this folder holds."""
    return json.loads(lzma.decompress((HERE / name).read_bytes()))


def measured_plans() -> tuple[dict[str, ShardingTask], dict[tuple[str, str], list[tuple[ShardingPlan, Floats]]]]:
    """Return tasks by name, and distinct plans with their phases, shape (D, 5), by board and task."""
    tasks = {key: ShardingTask.from_dict(value) for key, value in read("tasks.json.xz").items()}
    groups: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in read("measured.json.xz"):
        key = f"{row['suite']}/{row['task']}"
        groups[row["board"], key][json.dumps(row["plan"], sort_keys=True)].append(row)
    found = {}
    for place, plans in groups.items():
        # Digests leave out what has its default, and links had another one when the plans were made.
        digest = tasks[place[1]].digest
        found[place] = [
            (ShardingPlan.from_dict(rows[0]["plan"] | {"task_hash": digest}), np.mean([row["per_device"] for row in rows], axis=0))
            for rows in plans.values()
        ]
    return tasks, found


def agreement(predicted: list[Floats], measured: list[Floats]) -> dict[str, float]:
    """Return how well the phases of plans of one task agree, each of shape (D, 5)."""
    total = np.array([phases.sum(axis=1).max() for phases in measured])
    guess = np.array([phases.sum(axis=1).max() for phases in predicted])
    work = np.array([phases[:, [1, 4]].sum(axis=1).max() for phases in measured])
    guessed_work = np.array([phases[:, [1, 4]].sum(axis=1).max() for phases in predicted])
    close = [
        (guess[a] - guess[b]) * (total[a] - total[b]) > 0
        for a, b in itertools.combinations(range(len(total)), 2)
        if abs(total[a] / total[b] - 1) < CLOSE
    ]
    return {
        "tau": float(kendalltau(guess, total).statistic),
        "tau of compute with compute": float(kendalltau(guessed_work, work).statistic),
        "tau of compute with totals": float(kendalltau(guessed_work, total).statistic),
        "level": float(guess.mean() / total.mean()),
        "level of compute": float(guessed_work.mean() / work.mean()),
        "close pairs right": float(np.mean(close)) if close else np.nan,
    }


def compose(how: str, task: ShardingTask, plan: ShardingPlan, measured: Floats) -> Floats:
    """Return phases made of measured compute and the link model, without ids, shape (D, 5).

    Args:
        how: "sum", compute alone; "published", NeuroShard's: backward compute of the step before counts as work between two
            exchanges of pooled values; "step": both exchanges follow each other, as no device works between them.
        task: of the plan.
        plan: says how wide devices are.
        measured: phases, shape (D, 5).
    """
    phases = np.zeros_like(measured)
    phases[:, [1, 4]] = measured[:, [1, 4]]
    links = shipped_model()
    samples = samples_per_device(task.batch_size, task.num_devices)
    sent = np.outer(pooled_widths(task, plan), samples) * ELEMENT_BYTES[task.precision]
    if how == "published":
        phases[:, 3] = links.exit_ms(task.topology, np.zeros(task.num_devices), sent.T)
        ready = phases[:, [1, 3, 4]].sum(axis=1)
        phases[:, 2] = links.exit_ms(task.topology, ready, sent) - ready
    elif how == "step":
        ready = phases[:, 1]
        pooled = links.exit_ms(task.topology, ready, sent)
        phases[:, 2] = pooled - ready
        phases[:, 3] = links.exit_ms(task.topology, pooled, sent.T) - pooled
    return phases


def main() -> None:
    """Print a row for every cost."""
    tasks, groups = measured_plans()
    rows = []
    for text in sys.argv[1:] or COSTS:
        name, *settings = text.split(",")
        cost = make_cost(name, **{k: int(v) if v.isdigit() else v for k, v in (setting.split("=") for setting in settings)})
        found = []
        for (_, key), plans in groups.items():
            if len(plans) >= 3:
                predicted = [c.per_device for c in cost.evaluate(tasks[key], [plan for plan, _ in plans])]
                found.append(agreement(predicted, [phases for _, phases in plans]))
        mean = {column: float(np.nanmean([one[column] for one in found])) for column in found[0]}
        rows.append({"cost": text, "tasks": len(found), **mean})
    for composition in ("sum", "published", "step"):
        found = []
        for (_, key), plans in groups.items():
            if len(plans) >= 3:
                composed = [compose(composition, tasks[key], plan, phases) for plan, phases in plans]
                found.append(agreement(composed, [phases for _, phases in plans]))
        mean = {column: float(np.nanmean([one[column] for one in found])) for column in found[0]}
        rows.append({"cost": f"measured compute, {composition}", "tasks": len(found), **mean})
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f"))


if __name__ == "__main__":
    main()
