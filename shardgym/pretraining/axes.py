"""What a simulator of version 2 is worth where it has not been: one axis left out, another pool, good plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic.dataclasses import dataclass
from tabulate import tabulate

from shardgym.arrays import Bools, Floats
from shardgym.costs.simulator.features import mean_accesses
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import ComputeSamples
from shardgym.costs.simulator.weights import Role, load_weights, networks_of
from shardgym.files import write_whole
from shardgym.pretraining.assess import largest_per_group, mape, predict_compute, repeat_pairs
from shardgym.pretraining.data import LEAST_SAMPLES, DataSet
from shardgym.pretraining.pace import at_one_pace, paces_of
from shardgym.pretraining.train import FitSettings, Progress, train_role
from shardgym.records import CONFIG, Record

GENERALISATION = "generalisation.json"


@dataclass(frozen=True, config=CONFIG)
class Generalisation(Record):
    """What is written next to weights of version 2.

    Attributes:
        correlation: of the errors of oracle and judge by role of the samples, see `error_correlation`.
        left_out: by role of the simulator, see `leave_axes_out`.
    """

    correlation: dict[str, dict[str, float | int]]
    left_out: dict[str, list[dict[str, Any]]]
    schema: Literal["shardgym.generalisation/1"] = "shardgym.generalisation/1"

    def lines(self) -> list[str]:
        """Return it as text."""
        found = [
            f"errors of oracle and judge on {role} samples: correlation {of['correlation']:.2f} without label noise "
            f"({of['pairs']} pairs), {of['correlation_with_noise']:.2f} with it"
            for role, of in self.correlation.items()
        ]
        for role, rows in self.left_out.items():
            cells = [
                [row["left out"], row["samples"], f"{100 * row['mape']:.1f} %", f"{100 * row['mape_with']:.1f} %",
                 f"{np.exp(row['bias']):.2f}"]
                for row in rows
            ]  # fmt: skip
            headers = ["left out", "samples", "error there", "error with it", "predicted / measured"]
            found.append(f"\n{role}\n" + tabulate(cells, headers=headers, tablefmt="simple", disable_numparse=True))
        return found


def write_generalisation(
    data: DataSet, folder: Path, settings: FitSettings, seed: int, leave_out: bool, progress: Progress | None = None
) -> Generalisation:
    """Compare the weights in a folder with each other, train without parts of the space, and write what was found.

    Args:
        data: that the weights were trained on.
        folder: with the weights.
        settings: of training.
        seed: of training.
        leave_out: whether to train without parts of the space, which takes as long as all else again.
        progress: see `pretrain`.
    """
    data = at_one_pace(data, paces_of(data))
    roles = data.trainable_roles()
    networks = {role: networks_of(load_weights(folder / f"{role}.safetensors", role)) for role in roles}
    correlation = {}
    for of_samples in ("test", "transfer"):
        samples = data.of(of_samples)[0]
        found = error_correlation(networks["oracle"], networks["judge"], samples) if len(roles) == 2 else None
        if found is not None:
            correlation[of_samples] = found
    left_out: dict[str, list[dict[str, Any]]] = {}
    for role in roles if leave_out else ():
        left_out[role] = leave_axes_out(data, role, settings, seed, progress)
    result = Generalisation(correlation, left_out)
    write_whole(folder / GENERALISATION, result.to_json(indent=1) + "\n")
    return result


def _largest(values: Callable[[ComputeSamples], Floats], threshold: float) -> Callable[[ComputeSamples], Bools]:
    return lambda samples: largest_per_group(values(samples), samples.counts) >= threshold


#: Parts of the space that are left out of training, one at a time, and measured on.
AXES: dict[str, Callable[[ComputeSamples], Bools]] = {
    "batch 16384 and more": _largest(lambda s: s.shards.batch, 16_384),
    "fp16": lambda s: np.asarray(s.precision == "fp16"),
    "rowwise_adagrad": lambda s: np.asarray(s.optimizer == "rowwise_adagrad"),
    "adam": lambda s: np.asarray(s.optimizer == "adam"),
    "width 256 and more": _largest(lambda s: s.shards.columns, 256),
    "pooling factor 100 and more": _largest(lambda s: s.shards.pooling, 100),
    "rows 10 million and more": _largest(lambda s: s.shards.rows, 1e7),
    "64 shards and more": lambda s: np.asarray(s.counts >= 64),
    "no reuse": lambda s: largest_per_group(mean_accesses(s.shards), s.counts) < 1.5,
}


def leave_axes_out(
    data: DataSet, role: Role, settings: FitSettings, seed: int, progress: Progress | None = None,
    axes: Sequence[str] = tuple(AXES),
) -> list[dict[str, Any]]:  # fmt: skip
    """Train compute without each part of the space and return the errors there.

    Args:
        data: from `load_data`.
        role: that is trained.
        settings: of training; one member is trained.
        seed: of everything random.
        progress: see `pretrain`.
        axes: names of `AXES`.

    Returns:
        For each part that both trained and test samples reach: "left out", test "samples" in it, "mape" when it was
        left out and "mape_with" when it was not, and the "bias": mean logarithm of predicted over measured.
    """
    settings = dataclasses.replace(settings, members=1)
    compute, comm = data.of(role)
    none = comm.take(np.zeros(0, dtype=np.int64))
    test = data.of("test")[0]
    whole, _ = train_role(role, data.hardware, compute, none, settings, seed, progress)
    rows = []
    for name in axes:
        inside = np.flatnonzero(AXES[name](test))
        rest = np.flatnonzero(~AXES[name](compute))
        if not len(inside) or len(rest) == len(compute) or len(np.unique(compute.labels.content[rest])) < LEAST_SAMPLES:
            continue
        weights, _ = train_role(role, data.hardware, compute.take(rest), none, settings, seed, progress)
        part = test.take(inside)
        measured = part.ms.sum(axis=1)
        left, kept = (predict_compute(networks_of(w), part).sum(axis=1) for w in (weights, whole))
        rows.append({
            "left out": name, "samples": len(inside), "mape": mape(left, measured), "mape_with": mape(kept, measured),
            "bias": float(np.log(left / measured).mean()),
        })  # fmt: skip
    return rows


def error_correlation(oracle: Networks, judge: Networks, samples: ComputeSamples) -> dict[str, float | int] | None:
    """Return how the errors of oracle and judge go together: correlation of logarithmic errors of total compute.

    One measurement is compared with the oracle and its repeat with the judge, so that the noise of a label is not in
    both ("correlation"); "correlation_with_noise" has the same measurement in both. None with fewer than three pairs.
    """
    first, second = repeat_pairs(samples.labels)
    if len(first) < 3:
        return None
    measured = np.log(samples.ms.sum(axis=1))
    by_oracle = np.log(predict_compute(oracle, samples).sum(axis=1))
    by_judge = np.log(predict_compute(judge, samples).sum(axis=1))
    apart = np.corrcoef(by_oracle[first] - measured[first], by_judge[second] - measured[second])
    together = np.corrcoef(by_oracle - measured, by_judge - measured)
    return {
        "pairs": len(first),
        "correlation": float(apart[0, 1]),
        "correlation_with_noise": float(together[0, 1]),
    }
