"""Pre-training: deterministic, honest about its errors, and strict about what it learns from."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

from shardgym.cli import main
from shardgym.costs.simulator.features import Groups, shard_features, work
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.weights import load_weights, network_of
from shardgym.training.data import load_data
from shardgym.training.fitting import FitSettings, fit_prior, log_ms_of
from shardgym.training.pretrain import kendall_tau, mape, pretrain, score

SHORT = FitSettings(epochs=2, least_steps=0, batch=64, members=2)


@pytest.fixture(scope="module")
def short(data_folder, tmp_path_factory):
    """Weights of a tiny training."""
    folder = tmp_path_factory.mktemp("short")
    pretrain(load_data(data_folder), folder, SHORT, seed=1)
    return folder


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(short, data_folder, tmp_path):
    for name, seed in (("same", 1), ("other", 2)):
        pretrain(load_data(data_folder), tmp_path / name, SHORT, seed)
    for role in ("oracle", "judge"):
        first, same, other = (
            (folder / f"{role}.safetensors").read_bytes() for folder in (short, tmp_path / "same", tmp_path / "other")
        )
        assert first == same
        assert first != other


def test_a_tiny_training_gives_the_weights_it_always_gave(short):
    """Sums over each tensor, recorded when training was as it is; another CPU may add up in another order."""
    from safetensors.numpy import load_file

    for role, sums in json.loads(Path(__file__).with_name("golden_weights.json").read_text()).items():
        found = load_file(short / f"{role}.safetensors")
        assert {name: [value.sum(), np.abs(value).sum()] for name, value in found.items()} == {
            name: pytest.approx(expected, rel=1e-4, abs=1e-4) for name, expected in sums.items()
        }


def test_card_holds_errors_near_the_noise_of_the_fixture(model):
    """The fixture's noise is 3 % per phase; two independent measurements differ by 3.4 % on average."""
    card = ModelCard.load(model / "oracle.json")
    compute = card.errors["compute"]
    assert 0.015 < compute["noise_mape"] < 0.05
    assert compute["mape"] < 3 * compute["noise_mape"]
    assert compute["kendall_tau"] > 0.9
    assert compute["noise_pairs"] == 60
    assert (card.samples["compute"], card.samples["test compute"]) == (400, 120)
    tested = card.samples["test steps"]
    assert tested > 40
    assert card.errors["step_work"]["mape"] < 0.1
    assert card.errors["step_other_work"]["mape"] < 0.1
    assert len(card.curves["compute"]["valid"]) == 60
    assert set(card.data_sha256) == {"compute.parquet", "steps.parquet"}


def test_numpy_serves_what_torch_trained(data_folder, model):
    import torch

    samples, _ = load_data(data_folder).of("test")
    weights = load_weights(model / "oracle.safetensors", "oracle")
    groups = Groups(samples.counts)
    inputs = [torch.from_numpy(part) for part in (shard_features(samples.shards), work(samples.shards))]
    tensors = {name: torch.from_numpy(value) for name, value in weights.params.items()}
    for context in (0, 1):
        networks = network_of(weights, context)
        served = networks.compute(networks.encode(samples.shards), groups)
        known = torch.full((len(groups), 1), float(context), dtype=torch.float64)
        trained = log_ms_of(tensors, *inputs, groups, known)
        np.testing.assert_allclose(served, trained.exp().numpy(), rtol=1e-9)


def test_the_judge_does_not_depend_on_the_oracles_rows_and_need_not_be(made_up_rows, short, write_samples, tmp_path):
    half = {
        kind: [row for n, row in enumerate(rows) if row["role"] != "oracle" or n % 2]
        for kind, rows in made_up_rows.items()
    }
    pretrain(load_data(write_samples(tmp_path / "half", half)), tmp_path / "a", SHORT, seed=1)
    for role, same in (("judge", True), ("oracle", False)):
        one, other = ((folder / f"{role}.safetensors").read_bytes() for folder in (short, tmp_path / "a"))
        assert (one == other) == same
    without = {kind: [row for row in rows if row["role"] != "judge"] for kind, rows in made_up_rows.items()}
    cards = pretrain(load_data(write_samples(tmp_path / "none", without)), tmp_path / "b", SHORT)
    assert [card.role for card in cards] == ["oracle"]
    assert not (tmp_path / "b" / "judge.safetensors").exists()


def test_metrics_of_numbers_that_can_be_worked_out():
    assert mape(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == 0.5
    assert kendall_tau(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(1 / 3)
    measured = np.array([1.0, 9, 2, 9])
    found = score(2 * measured, measured, (np.array([0]), np.array([2])))
    assert (found["mape"], found["noise_mape"], found["noise_pairs"]) == (1.0, pytest.approx((0.5 + 1.0) / 2), 1)
    none = np.array([], dtype=int)
    assert score(measured, measured, (none, none))["noise_mape"] is None


def test_the_analytic_sum_finds_weights_and_none_is_negative():
    rng = np.random.default_rng(0)
    amounts = rng.uniform(1, 5, (50, 3))
    weights = np.array([2.0, 0.0, 0.5])
    np.testing.assert_allclose(fit_prior(amounts, amounts @ weights), weights, atol=1e-9)
    assert (fit_prior(amounts, amounts @ np.array([2.0, -0.2, 0.5])) >= 0).all()


def test_command_writes_weights_cards_and_plots(data_folder, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra 'data'")
    out = tmp_path / "model"
    arguments = ["pretrain", str(data_folder), "-o", str(out), "--epochs", "1", "--report"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "oracle, trained for made-up" in printed.out
    assert "judge, trained for made-up" in printed.out
    assert f"plots are in {out / 'report'}" in printed.err
    plots = {f"{role}-{plot}.png" for role in ("oracle", "judge") for plot in ("predicted", "losses")}
    assert {path.name for path in (out / "report").iterdir()} == plots
    assert all(path.stat().st_size > 5000 for path in (out / "report").iterdir())
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
