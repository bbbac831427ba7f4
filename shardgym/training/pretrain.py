"""Pre-training: from a data set to a folder of weights, model cards and plots.

A card says how good a simulator is on measurements it never saw, against what one measurement says about another.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.link_model import shipped_model
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.network import ALONE, NumpyNet
from shardgym.costs.simulator.weights import Role, Weights, load_weights, network_of, save_weights
from shardgym.errors import import_extra
from shardgym.files import make_folder, write_whole
from shardgym.machine import utc_now, versions
from shardgym.training.data import DataSet, Paces, at_one_pace, paces_of
from shardgym.training.fitting import FitSettings, Progress, step_amounts, train_role
from shardgym.training.samples import ComputeSamples, StepSamples


def pretrain(
    data: DataSet, folder: Path, settings: FitSettings | None = None, seed: int = 0, progress: Progress | None = None
) -> list[ModelCard]:
    """Train every role that has samples, write `ROLE.safetensors` and `ROLE.json` into a folder, and return the cards.

    The same data, settings and seed give the same bytes of weights on the same machine and versions. Times of steps are
    taken to pace 1, and those of kernels alone, of several collections, to the pace of the largest one. `progress` is
    called after every epoch with what is trained, the epoch, and how many there are.
    """
    make_folder(folder)
    settings = settings or FitSettings()
    paces = paces_of(data)
    data = at_one_pace(data, paces)
    return [_pretrain_role(role, data, paces, folder, settings, seed, progress) for role in data.trainable_roles()]


def _pretrain_role(
    role: Role, data: DataSet, paces: Paces, folder: Path, settings: FitSettings, seed: int, progress: Progress | None
) -> ModelCard:
    def of_role(name: str, epoch: int, epochs: int) -> None:
        if progress is not None:
            progress(f"{role}, {name}", epoch, epochs)

    alone, steps = data.of(role)
    test_alone, test_steps = data.of("test")
    weights, curves = train_role(role, data.hardware, alone, steps, settings, seed, of_role)
    # As the measured cost prices exchanges that it cannot measure.
    weights = dataclasses.replace(weights, links=shipped_model() if len(steps) else None)
    path = folder / f"{role}.safetensors"
    digest = save_weights(path, weights)
    # Errors are those of the file that was written, through the code that serves predictions.
    weights = load_weights(path, role, data.hardware)
    errors: dict[str, Any] = {}
    if len(test_steps):
        errors |= {f"step_{name}": of for name, of in _assess(network_of(weights), test_steps.compute).items()}
        errors |= _assess_lines(weights, test_steps)
    if len(test_alone):
        errors |= _assess(network_of(weights, ALONE), test_alone)
    card = ModelCard(
        role=role,
        hardware=data.hardware,
        weights_sha256=digest,
        created=utc_now(),
        seed=seed,
        settings=dataclasses.asdict(settings),
        versions=versions(),
        data_sha256=data.digests,
        collection=data.settings,
        samples={
            "compute": len(alone),
            "steps": len(steps),
            "test compute": len(test_alone),
            "test steps": len(test_steps),
        },
        errors=errors,
        curves=curves,
        paces=paces,
    )
    write_whole(folder / f"{role}.json", card.to_json(indent=1) + "\n")
    return card


# --- how good it is ---------------------------------------------------------------------------------------------------


def _assess(network: NumpyNet, samples: ComputeSamples) -> dict[str, Any]:
    """Return the scores of forward, backward and total compute."""
    predicted = _predict_compute(network, samples)
    pairs = repeat_pairs(samples)
    return {
        "forward_compute": score(predicted[:, 0], samples.ms[:, 0], pairs),
        "backward_compute": score(predicted[:, 1], samples.ms[:, 1], pairs),
        "compute": score(predicted.sum(axis=1), samples.ms.sum(axis=1), pairs),
    }


def _assess_lines(weights: Weights, steps: StepSamples) -> dict[str, Any]:
    """Return the scores of the other work of devices in a step, and of all their work."""
    assert weights.lines is not None, "it was trained on steps"
    pairs = repeat_pairs(steps.compute)
    other = np.einsum("nla,la->n", step_amounts(steps), weights.lines)
    measured = steps.parts_ms.sum(axis=1)
    work = other + _predict_compute(network_of(weights), steps.compute).sum(axis=1)
    return {
        "step_other_work": score(other, measured, pairs),
        "step_work": score(work, measured + steps.compute.ms.sum(axis=1), pairs),
    }


def _predict_compute(network: NumpyNet, samples: ComputeSamples) -> Floats:
    """Return forward and backward ms, shape (N, 2)."""
    return network.compute(network.encode(samples.shards), Groups(samples.counts))


def score(predicted: Floats, measured: Floats, pairs: tuple[Ints, Ints]) -> dict[str, Any]:
    """Return errors of predictions, one figure per sample, shape (N,), and of repeats, by their positions.

    Returns:
        "mape" and "kendall_tau" of the predictions, "noise_mape" and "noise_kendall_tau" of measurements as predictions
        of their repeats (None without repeats), how many "noise_pairs" these rest on, and "mape_over_noise".
    """
    first, second = (measured[positions] for positions in pairs)
    noise = (mape(first, second) + mape(second, first)) / 2 if len(first) else None
    error = mape(predicted, measured)
    return {
        "samples": len(measured),
        "mape": error,
        "noise_mape": noise,
        "noise_pairs": len(first),
        "mape_over_noise": error / noise if noise else None,
        "kendall_tau": kendall_tau(predicted, measured),
        "noise_kendall_tau": kendall_tau(first, second) if len(first) > 1 else None,
    }


def repeat_pairs(samples: ComputeSamples) -> tuple[Ints, Ints]:
    """Return positions of first and second measurements of the same content, of those that have both."""
    contents = samples.content.tolist()
    repeats = samples.repeat.tolist()
    firsts = {content: n for n, content in enumerate(contents) if repeats[n] == 0}
    pairs = [(firsts[content], n) for n, content in enumerate(contents) if repeats[n] == 1 and content in firsts]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean absolute percentage error as a fraction."""
    return float(np.mean(np.abs(predicted - measured) / measured))


def kendall_tau(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation (tau-b)."""
    from scipy import stats

    return float(stats.kendalltau(first, second).statistic)


# --- plots ------------------------------------------------------------------------------------------------------------


def draw_report(card: ModelCard, data: DataSet, folder: Path) -> list[Path]:
    """Draw predictions against measurements, and losses, as PNG files in `report/` beside the weights; return these."""
    make_folder(folder / "report")
    network = network_of(load_weights(folder / f"{card.role}.safetensors", card.role, card.hardware))
    alone, steps = at_one_pace(data, card.paces).of("test")
    test = steps.compute if len(steps) else alone
    predicted = _predict_compute(network, test)

    def scatter(axes: Any) -> None:
        for phase, name in enumerate(("forward", "backward")):
            axes.loglog(test.ms[:, phase], predicted[:, phase], ".", markersize=3, alpha=0.6, label=name)
        ends = [float(test.ms.min()), float(test.ms.max())]
        axes.loglog(ends, ends, color="black", linewidth=0.8)
        axes.set(xlabel="measured (ms)", ylabel="predicted (ms)", title="compute of shards of unseen tables")
        axes.legend()

    def losses(axes: Any) -> None:
        for name, curves in card.curves.items():
            line = axes.semilogy(curves["train"], linewidth=0.8, label=f"{name}, training")
            axes.semilogy(curves["valid"], linewidth=0.8, linestyle="--", color=line[0].get_color(), label="validation")
        axes.set(xlabel="epoch", ylabel="loss")
        axes.legend()

    paths = []
    for name, fill in (("predicted", scatter), ("losses", losses)):
        # A figure of its own, without touching matplotlib's global state.
        figure: Any = import_extra("matplotlib.figure", "plots").Figure(figsize=(6, 4.5), layout="constrained")
        fill(figure.subplots())
        paths.append(folder / "report" / f"{card.role}-{name}.png")
        figure.savefig(paths[-1], dpi=130)
    return paths
