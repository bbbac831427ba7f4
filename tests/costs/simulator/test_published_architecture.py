"""`tools/published_architecture.py`: the comparison with the published architecture."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest

from shardgym.costs.simulator.model_card import ModelCard

pytest.importorskip("pyarrow", reason="needs the extra 'data'")
pytest.importorskip("matplotlib", reason="needs the extra 'data'")
pytestmark = pytest.mark.repository

PLOTS = ["oracle-learning-curve.png", "oracle-published.png"]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "tools")
    return importlib.import_module("published_architecture")


@pytest.mark.slow
def test_the_comparison_goes_into_the_card_and_into_plots(tool, data_folder, model, tmp_path, capsys):
    folder = shutil.copytree(model, tmp_path / "model")
    assert tool.main([str(data_folder), str(folder), "--epochs", "3"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{part}: error " in printed for part in ("compute", "forward comm", "backward comm"))
    comparison = ModelCard.load(folder / "oracle.json").comparison
    assert [row["contents"] for row in comparison["learning_curve"]] == [64, 128, 256, 400]
    assert comparison["compute"]["published"]["mape"] > comparison["compute"]["ours"]["mape"]
    assert sorted(path.name for path in (folder / "report").iterdir()) == PLOTS
    assert all((folder / "report" / name).stat().st_size > 5000 for name in PLOTS)


def test_without_exchanges_compute_alone_is_compared(tool, made_up_rows, quick_settings, tmp_path, capsys):
    from shardgym.costs.simulator.sample_files import DataInfo, write_rows
    from shardgym.pretraining.data import load_data
    from shardgym.pretraining.pretrain import pretrain
    from shardgym.pretraining.train import FitSettings

    info = DataInfo("compute", "made-up", {"shardgym": "test"}, {"made": "up"}, "2026-01-01T00:00:00+00:00")
    write_rows(tmp_path / "compute.parquet", made_up_rows["compute"], info)
    pretrain(load_data(tmp_path), tmp_path / "model", FitSettings(epochs=1, least_steps=0))
    assert tool.main([str(tmp_path), str(tmp_path / "model"), "--epochs", "1", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"compute", "learning_curve", "samples_to_twice_noise"}


def test_data_that_the_model_was_not_trained_on_is_refused(tool, data_folder, model, tmp_path, capsys):
    folder = shutil.copytree(model, tmp_path / "model")
    card = json.loads((folder / "oracle.json").read_text())
    (folder / "oracle.json").write_text(json.dumps(card | {"data_sha256": {}}))
    assert tool.main([str(data_folder), str(folder)]) == 2
    error = capsys.readouterr().err
    assert "is of other data" in error
    assert error.count("\n") == 1
