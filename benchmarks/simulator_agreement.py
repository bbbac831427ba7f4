"""Whether the simulator ranks plans as fresh measurements do, next to how measurements rank their own repeats.

    python benchmarks/simulator_agreement.py [--weights FOLDER | --generation 2] [--suite NAME] [--tasks N] [--write]

For every task, random feasible plans of all degrees of balance are measured twice, each time interleaved in one run.
Printed are means over tasks of Kendall's tau and of the mean absolute percentage error: of the oracle, the judge
(where there are weights of one) and the roofline against both measurements, and of the measurements against each other.
Version 2 of the simulator is held against version 3 of the measured cost, whose exchanges it has.
--write keeps the figures as `agreement.json` next to the weights, from where simulated boards print them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingPlan, ShardingTask, load_suite, make_cost
from shardgym.costs.simulator.model_card import AGREEMENT, Agreement, ModelAgreement
from shardgym.costs.simulator.weights import find_weights
from shardgym.provenance import utc_now

_DRAWS_PER_PLAN = 200
REPEAT = "repeated measurement"
#: Version of the measured cost that a version of the simulator stands for.
MEASURED_VERSION = {"1": "1", "2": "3"}


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, help="folder of 'shardgym pretrain'; the package's if not given")
    parser.add_argument("--generation", type=int, choices=(1, 2), help="version of the simulator")
    parser.add_argument("--suite", default="dlrm4-v1", help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=12, help="(%(default)s)")
    parser.add_argument("--plans", type=int, default=16, help="per task (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of the measurement (%(default)s)")
    parser.add_argument("--write", action="store_true", help="keep the figures next to the weights")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chosen = {"weights": arguments.weights, "generation": arguments.generation}
    oracle = make_cost("simulator", **chosen)
    models = {"oracle": oracle, "roofline": make_cost("roofline")}
    if arguments.weights is None or (arguments.weights / "judge.safetensors").exists():
        models["judge"] = make_cost("simulator", **chosen, role="judge")
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    suite = load_suite(arguments.suite)
    version = MEASURED_VERSION[oracle.version.partition("-")[0]]
    with make_cost("fbgemm", rounds=arguments.rounds, version=version) as measured:
        for number in tqdm(range(min(arguments.tasks, len(suite)))):
            rows += agreement(suite[number], random_plans(suite[number], arguments.plans, rng), models, measured)
        hardware = measured.hardware
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(means(rows), headers="keys", floatfmt=".3f"))
    if arguments.write:
        path = find_weights(arguments.weights, "oracle", None, arguments.generation).parent / AGREEMENT
        found = kept(means(rows), models, arguments.suite, arguments.plans, hardware)
        path.write_text(found.to_json(indent=1) + "\n", encoding="utf-8")


def kept(table: list[dict[str, Any]], models: dict[str, CostModel], suite: str, plans: int, hardware: str) -> Agreement:
    """Return the record of what was found."""
    versions = {name: model.version for name, model in models.items()}
    figures = {
        row["cost"]: ModelAgreement(row["tau"], row["mape"], row["unfamiliar"], versions.get(row["cost"], ""))
        for row in table
    }
    repeat = figures.pop(REPEAT)
    return Agreement(suite, table[0]["tasks"], plans, utc_now(), hardware, repeat, figures)


def random_plans(task: ShardingTask, count: int, rng: np.random.Generator) -> list[ShardingPlan]:
    """Draw feasible table-wise plans, from balanced to lopsided; fewer where memory is tight."""
    plans: list[ShardingPlan] = []
    for _ in range(count * _DRAWS_PER_PLAN):
        shares = rng.dirichlet(np.full(task.num_devices, rng.uniform(2, 20)))
        plan = ShardingPlan.table_wise(task, rng.choice(task.num_devices, task.num_tables, p=shares).tolist())
        limits = task.topology.memory_bytes
        if all(used <= limit for used, limit in zip(plan.bytes_per_device(task), limits, strict=True)):
            plans.append(plan)
        if len(plans) == count:
            break
    return plans


def agreement(
    task: ShardingTask, plans: list[ShardingPlan], models: dict[str, CostModel], measured: CostModel
) -> list[dict[str, Any]]:
    """Compare all models with two measurements of the plans of one task; one row per model, none for under 3 plans."""
    if len(plans) < 3:
        return []
    totals = [np.array([cost.total_ms for cost in measured.evaluate(task, plans)]) for _ in range(2)]
    rows = [_row(task, REPEAT, totals[0], totals[1:])]
    for name, model in models.items():
        costs = model.evaluate(task, plans)
        row = _row(task, name, np.array([cost.total_ms for cost in costs]), totals)
        rows.append({**row, "unfamiliar": float(np.mean([bool(cost.notes) for cost in costs]))})
    return rows


def _row(task: ShardingTask, name: str, predicted: Any, totals: list[Any]) -> dict[str, Any]:
    taus = [float(kendalltau(predicted, total).statistic) for total in totals]
    errors = [float(np.mean(np.abs(predicted / total - 1))) for total in totals]
    tau = float(np.mean(taus))
    mape = float(np.mean(errors))
    return {"task": task.name, "cost": name, "tau": tau, "mape": mape, "unfamiliar": 0.0}


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over tasks."""
    names = list(dict.fromkeys(row["cost"] for row in rows))
    table = []
    for name in names:
        of_name = [row for row in rows if row["cost"] == name]
        figures = {key: float(np.mean([row[key] for row in of_name])) for key in ("tau", "mape", "unfamiliar")}
        table.append({"cost": name, "tasks": len(of_name), **figures})
    return table


if __name__ == "__main__":
    main()
