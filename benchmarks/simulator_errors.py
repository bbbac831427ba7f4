"""Errors of both versions of the simulator on each collection of a data set, and without learning from it.

    python benchmarks/simulator_errors.py [--data FOLDER] [--leave-out FILE] [--page PAGE] [--json]

Compute of test samples, whose tables no role learned from, by the oracles that ship for the data's hardware. A
collection is a file: made at one time, from one space. Machines are faster on some days than on others, so errors are
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

import numpy as np
from page_blocks import fill
from tabulate import tabulate

from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import ComputeSamples
from shardgym.costs.simulator.weights import SHIPPED, find_weights, load_weights, networks_of
from shardgym.errors import InputError, ShardGymError
from shardgym.pretraining.assess import mape, noise_floor, predict_compute, repeat_pairs
from shardgym.pretraining.data import LEAST_SAMPLES, DataSet, load_data
from shardgym.pretraining.pace import at_one_pace, paces_of
from shardgym.pretraining.train import SETTINGS, FitSettings, train_role


def main(arguments: list[str] | None = None) -> int:
    """Print the errors; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=SHIPPED / "cpu-amd-epyc-2c-v2",
        help="folder of measured samples; those that ship with version 2 if not given",
    )  # fmt: skip
    parser.add_argument("--leave-out", metavar="FILE", help="also train without a collection: compute-survey.parquet")
    parser.add_argument("--page", type=Path, help="Markdown page whose block 'errors' is filled")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        data = load_data(options.data)
        models = shipped(data.hardware)
        rows = errors(data, models, options.leave_out, dataclasses.replace(SETTINGS[2], members=1))
        if options.page is not None:
            fill(options.page, "errors", rows)
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    table = tabulate(rows, headers="keys", floatfmt=".3f", missingval="-")
    print(json.dumps(rows, indent=2) if options.json else table)
    return 0


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
