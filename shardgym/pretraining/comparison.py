"""Our models beside the published ones, on the same samples and the same test rows, over data size."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples
from shardgym.pretraining.assess import predict_compute
from shardgym.pretraining.compute import best_member_ms, train_compute
from shardgym.pretraining.exchange import BACKWARD, DIRECTIONS, exchanges_of_samples
from shardgym.pretraining.fit import FitSettings, Progress, one_thread
from shardgym.pretraining.metrics import mape, noise_floor, per_group, repeat_pairs, score
from shardgym.pretraining.published import train_published_comm, train_published_compute

#: Smallest part of the data that a learning curve starts from, in contents; it doubles from there.
_FIRST_SIZE = 64
#: Fewer contents of one number of devices are not enough for a net of their own.
_LEAST_COMM = 20


def compare(
    predictor: Networks,
    compute: ComputeSamples,
    comm: CommSamples,
    test: tuple[ComputeSamples, CommSamples],
    settings: FitSettings,
    published_epochs: int,
    seed: int,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train the published models on the oracle's samples, and both kinds of compute model on parts of them.

    Returns:
        "compute" and "forward_comm", "backward_comm" with "ours" and "published" scores; "learning_curve"; and
        "samples_to_twice_noise" of both: contents needed to reach twice the noise floor, None when never reached.
    """  # fmt: skip
    test_compute, test_comm = test
    total, pairs = test_compute.ms.sum(axis=1), repeat_pairs(test_compute.labels)
    published = train_published_compute(compute, published_epochs, seed)(test_compute)
    result: dict[str, Any] = {
        "compute": {
            "ours": score(predict_compute(predictor, test_compute).sum(axis=1), total, pairs),
            "published": score(published, total, pairs),
        }
    }
    for direction, name in enumerate(DIRECTIONS if len(test_comm) else ()):
        result[f"{name}_comm"] = _compare_comm(predictor, comm, test_comm, direction, published_epochs, seed)
    curve = learning_curve(compute, test_compute, settings, published_epochs, seed, progress)
    noise = noise_floor(total, pairs)
    return {**result, "learning_curve": curve, "samples_to_twice_noise": _reached(curve, noise)}


def learning_curve(
    samples: ComputeSamples, test: ComputeSamples, settings: FitSettings, published_epochs: int, seed: int,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the error of total compute on test rows by number of contents trained on, ours and the published."""
    contents = np.random.default_rng([seed, 17]).permutation(np.unique(samples.labels.content))
    sizes = [size for n in range(30) if (size := _FIRST_SIZE * 2**n) < len(contents)] + [len(contents)]
    single, total, rows = dataclasses.replace(settings, members=1), test.ms.sum(axis=1), []
    for number, size in enumerate(sizes):
        part = samples.take(np.flatnonzero(np.isin(samples.labels.content, contents[:size])))
        with one_thread():
            ours = best_member_ms(train_compute(part, single, seed), test).sum(axis=1)
        theirs = train_published_compute(part, published_epochs, seed)(test)
        rows.append({"contents": size, "ours": mape(ours, total), "published": mape(theirs, total)})
        if progress is not None:
            progress("learning curve", number + 1, len(sizes))
    return rows


def _reached(curve: list[dict[str, Any]], noise: float | None) -> dict[str, int | None]:
    return {
        who: next((row["contents"] for row in curve if noise is not None and row[who] <= 2 * noise), None)
        for who in ("ours", "published")
    }


def _compare_comm(
    predictor: Networks, comm: CommSamples, test: CommSamples, direction: int, epochs: int, seed: int
) -> dict[str, Any]:
    """Score numbers of devices that both the training and the test rows have enough of."""
    ours: list[Floats] = []
    theirs: list[Floats] = []
    kept: list[np.ndarray[Any, Any]] = []
    for devices in np.unique(test.counts):
        learned = comm.take(np.flatnonzero(comm.counts == devices))
        if len(np.unique(learned.labels.content)) < _LEAST_COMM:
            continue
        positions = np.flatnonzero(test.counts == devices)
        part = test.take(positions)
        exchanges = exchanges_of_samples(part, direction)
        ours.append(per_group(predictor.exchange_ms(exchanges, backward=direction == BACKWARD), part.counts))
        theirs.append(per_group(train_published_comm(learned, direction, epochs, seed)(part), part.counts))
        kept.append(positions)
    if not kept:
        return {}
    part = test.take(np.concatenate(kept))
    measured, pairs = per_group(part.ms[:, direction], part.counts), repeat_pairs(part.labels)
    return {
        "ours": score(np.concatenate(ours), measured, pairs),
        "published": score(np.concatenate(theirs), measured, pairs),
    }
