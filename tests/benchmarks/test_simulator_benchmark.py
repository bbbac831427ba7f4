"""How well models order plans that boards measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from shardgym.evaluation.result import RunInfo, read_records

pytestmark = pytest.mark.repository


def test_boards_that_were_measured_twice_say_how_far_a_model_can_agree(script, tmp_path, monkeypatch):
    """Two tasks of a board, and the same costs again under other ids: a perfect repeat beside models that err."""
    module = script("simulator")
    board = Path(module.__file__).parents[1] / "leaderboards" / "dlrm4-v2-fbgemm"
    records = [result for result in read_records(board / "records.jsonl.xz") if result.task_index < 2]
    run = RunInfo.beside(board)
    monkeypatch.setattr(module, "LEADERBOARDS", tmp_path)
    for seed in (0, 1):
        folder = tmp_path / f"ids{seed}"
        folder.mkdir()
        settings = run.judge_settings | {"seed": seed}
        dataclasses.replace(run, judge_settings=settings).write(folder)
        again = [dataclasses.replace(result, judge_settings=settings) for result in records]
        (folder / "records.jsonl").write_text("".join(result.to_json() + "\n" for result in again))
        rows = {row["cost"]: row for row in module.on_boards(write=False)}  # the last of a cost is of all hardware
        assert rows["judge"]["tasks"] == 2 * (seed + 1)
        assert (module.REPEAT in rows) == (seed == 1)
    assert rows[module.REPEAT]["tau"] == pytest.approx(1.0)
    assert rows[module.REPEAT]["of them right"] == 1.0
    assert -1 < rows["judge"]["tau"] < 1
