"""The simulator against measurements: how it ranks fresh plans, and its errors on each collection of a data set.

    python benchmarks/simulator.py agreement [--weights FOLDER | --generation 2] [--suite NAME] [--tasks N] [--write]
    python benchmarks/simulator.py errors [--data FOLDER] [--leave-out FILE] [--page PAGE]

`agreement`: for every task, random feasible plans of all degrees of balance are measured twice, each time interleaved
in one run. Printed are means over tasks of Kendall's tau and of the mean absolute percentage error: of the oracle, the
judge (where there are weights of one) and the roofline against both measurements, and of the measurements against each
other.
--write keeps the figures as `agreement.json` next to the weights, from where simulated boards print them.

`errors`: compute of test samples, whose tables no role learned from, by the oracles that ship for the data's hardware.
A collection is a file: made at one time, from one space. Machines are faster on some days than on others, so errors are
given twice: as they are, and after predictions are divided by their median ratio to the measurements.
With --leave-out a network of version 2 is also trained without a collection (minutes), and tested on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1] / "tools"))

import numpy as np
from fill_pages import fill
from scipy.stats import kendalltau
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingPlan, ShardingTask, load_suite, make_cost
from shardgym.costs.simulator.model_card import AGREEMENT, Agreement, ModelAgreement
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import ComputeSamples
from shardgym.costs.simulator.weights import SHIPPED, find_weights, load_weights, networks_of
from shardgym.errors import InputError, ShardGymError
from shardgym.pretraining.assess import mape, noise_floor, predict_compute, repeat_pairs
from shardgym.pretraining.data import LEAST_SAMPLES, DataSet, load_data
from shardgym.pretraining.pace import at_one_pace, paces_of
from shardgym.pretraining.train import SETTINGS, FitSettings, train_role
from shardgym.provenance import utc_now

_DRAWS_PER_PLAN = 200
REPEAT = "repeated measurement"


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ranks = commands.add_parser("agreement")
    ranks.add_argument("--weights", type=Path, help="folder of 'shardgym pretrain'; the package's if not given")
    ranks.add_argument("--generation", type=int, choices=(1, 2), help="version of the simulator")
    ranks.add_argument("--suite", default="dlrm4-v1", help="(%(default)s)")
    ranks.add_argument("--tasks", type=int, default=12, help="(%(default)s)")
    ranks.add_argument("--plans", type=int, default=16, help="per task (%(default)s)")
    ranks.add_argument("--rounds", type=int, default=3, help="of the measurement (%(default)s)")
    ranks.add_argument("--write", action="store_true", help="keep the figures next to the weights")
    samples = commands.add_parser("errors")
    samples.add_argument(
        "--data", type=Path, default=SHIPPED / "cpu-amd-epyc-2c-v2",
        help="folder of measured samples; those that ship with version 2 if not given",
    )  # fmt: skip
    samples.add_argument("--leave-out", metavar="FILE", help="also train without a collection: compute-survey.parquet")
    samples.add_argument("--page", type=Path, help="Markdown page whose block 'errors' is filled")
    for command in (ranks, samples):
        command.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.command == "agreement":
            rows = compare(options)
            shown = rows if options.json else means(rows)
        else:
            data = load_data(options.data)
            one = dataclasses.replace(SETTINGS[2], members=1)
            shown = errors(data, shipped(data.hardware), options.leave_out, one)
            if options.page is not None:
                fill(options.page, "errors", shown)
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    table = tabulate(shown, headers="keys", floatfmt=".3f", missingval="-")
    print(json.dumps(shown, indent=2) if options.json else table)
    return 0


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure plans, and return how costs agree, one row per task and cost."""
    chosen = {"weights": arguments.weights, "generation": arguments.generation}
    oracle = make_cost("simulator", **chosen)
    models = {"oracle": oracle, "roofline": make_cost("roofline")}
    if arguments.weights is None or (arguments.weights / "judge.safetensors").exists():
        models["judge"] = make_cost("simulator", **chosen, role="judge")
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    suite = load_suite(arguments.suite)
    with make_cost("fbgemm", rounds=arguments.rounds) as measured:
        for number in tqdm(range(min(arguments.tasks, len(suite)))):
            rows += agreement(suite[number], random_plans(suite[number], arguments.plans, rng), models, measured)
        hardware = measured.hardware
    if arguments.write:
        path = find_weights(arguments.weights, "oracle", None, arguments.generation).parent / AGREEMENT
        found = kept(means(rows), models, arguments.suite, arguments.plans, hardware)
        path.write_text(found.to_json(indent=1) + "\n", encoding="utf-8")
    return rows


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
    off = [float(np.mean(np.abs(predicted / total - 1))) for total in totals]
    tau = float(np.mean(taus))
    return {"task": task.name, "cost": name, "tau": tau, "mape": float(np.mean(off)), "unfamiliar": 0.0}


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over tasks."""
    names = list(dict.fromkeys(row["cost"] for row in rows))
    table = []
    for name in names:
        of_name = [row for row in rows if row["cost"] == name]
        figures = {key: float(np.mean([row[key] for row in of_name])) for key in ("tau", "mape", "unfamiliar")}
        table.append({"cost": name, "tasks": len(of_name), **figures})
    return table


def shipped(hardware: str) -> dict[str, Networks]:
    """Return the oracles of both versions that ship for a hardware tag."""
    paths = {f"version {number}": find_weights(None, "oracle", hardware, number) for number in (1, 2)}
    return {name: networks_of(load_weights(path, "oracle")) for name, path in paths.items()}


def errors(
    data: DataSet, models: dict[str, Networks], leave_out: str | None, settings: FitSettings
) -> list[dict[str, Any]]:
    """Return a row for each collection with test samples and each model.

    Args:
        data: from `load_data`.
        models: by what they are called.
        leave_out: a collection that one more network is trained without.
        settings: of that network.

    Raises:
        InputError: there is no such collection, or not enough beside it.
    """
    test, _ = data.of("test")
    names = np.unique(test.labels.collection).tolist()
    if leave_out is not None and leave_out not in names:
        raise InputError(f"--leave-out {leave_out}: expected a collection with test samples: {', '.join(names)}")
    rows = []
    for name in names:
        part = test.take(np.flatnonzero(test.labels.collection == name))
        here = dict(models)
        if name == leave_out:
            here["version 2, trained without it"] = trained_without(name, data, settings)
        rows += [row(name, title, part, model) for title, model in here.items()]
    return rows


def trained_without(name: str, data: DataSet, settings: FitSettings) -> Networks:
    """Train compute on the oracle's samples of all other collections, at one pace."""
    rest = data._replace(compute=data.compute.take(np.flatnonzero(data.compute.labels.collection != name)))
    compute, comm = at_one_pace(rest, paces_of(rest)).of("oracle")
    if len(np.unique(compute.labels.content)) < LEAST_SAMPLES:
        raise InputError(f"--leave-out {name}: fewer than {LEAST_SAMPLES} samples of the oracle's are of others")
    weights, _ = train_role("oracle", data.hardware, compute, comm.take(np.zeros(0, dtype=np.int64)), settings, seed=0)
    return networks_of(weights)


def row(collection: str, title: str, samples: ComputeSamples, model: Networks) -> dict[str, Any]:
    """Return the errors of a model on test samples of a collection, next to those of a repeated measurement."""
    measured = samples.ms.sum(axis=1)
    predicted = predict_compute(model, samples).sum(axis=1)
    ratio = float(np.median(predicted / measured))
    return {
        "collection": collection, "samples": len(measured), "model": title,
        "repeat": noise_floor(measured, repeat_pairs(samples.labels)), "error": mape(predicted, measured),
        "predicted / measured": ratio, "error but for that": mape(predicted / ratio, measured),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
