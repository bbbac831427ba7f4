"""shardgym.read_results: records as a pandas DataFrame."""

from __future__ import annotations

import math
import sys

import pytest
from evaluation_toys import CountCost, DriftingCost, ToySuite, toy_tasks
from verify_toys import TOY, pack

import shardgym
from shardgym.evaluation import SolverSpec, evaluate

pd = pytest.importorskip("pandas")


def run(out, solvers, judge=None, **options):
    return evaluate(ToySuite(toy_tasks()), solvers, out=out, judge=judge or CountCost(), oracle="roofline", **options)


def test_one_row_per_record_with_its_figures(tmp_path):
    results = run(tmp_path, [TOY + "Halves", SolverSpec(TOY + "Tuned", {"k": 1}, "tuned")], seeds=[0, 3])
    frame = shardgym.read_results(tmp_path)
    assert len(frame) == len(results) == 12
    assert frame["solver"].tolist() == [r.solver for r in results]
    assert frame["total_ms"].tolist() == [r.total_ms for r in results]
    assert frame["task_hash"].tolist() == [r.task_hash for r in results]
    row = frame[(frame["solver"] == "tuned") & (frame["task_index"] == 2) & (frame["seed"] == 3)].iloc[0]
    assert (row["made_from"], row["suite"], row["status"]) == (TOY + "Tuned", "toys", "ok")
    assert (row["judge"], row["judge_version"], row["oracle"], row["hardware"]) == (
        CountCost.name, "1", "roofline", "toy",
    )  # fmt: skip
    assert row["file"] == str(tmp_path / "records.jsonl")
    assert math.isnan(row["standard_error_ms"])
    assert frame.groupby("solver")["total_ms"].mean().to_dict() == pytest.approx({TOY + "Halves": 2.1, "tuned": 2.1})


def test_failures_have_no_cost_and_a_reason(tmp_path):
    run(tmp_path, [TOY + "GivesUp", TOY + "Overfull"], limit=1)
    frame = shardgym.read_results(tmp_path / "records.jsonl")
    assert frame["status"].tolist() == ["infeasible"] * 2
    assert frame["total_ms"].isna().all()
    assert frame["reason"].iloc[0] == "table 't3' fits nowhere"


def test_measured_costs_have_a_standard_error(tmp_path):
    run(tmp_path, [TOY + "Halves"], DriftingCost(), limit=1)
    frame = shardgym.read_results(tmp_path)
    assert frame["standard_error_ms"].tolist() == pytest.approx([0.01 * frame["total_ms"].iloc[0]])


def test_folders_below_are_read_and_a_line_that_was_cut_off_is_left_out(tmp_path):
    run(tmp_path / "a", [TOY + "Halves"])
    run(tmp_path / "b", [TOY + "Halves"])
    path = tmp_path / "b" / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    frame = shardgym.read_results(tmp_path)
    assert frame.groupby("file").size().tolist() == [3, 2]


def test_packed_records_are_read_as_they_were(tmp_path):
    run(tmp_path, [TOY + "Halves"])
    before = shardgym.read_results(tmp_path)
    path = pack(tmp_path)
    after = shardgym.read_results(tmp_path)
    assert after["file"].unique().tolist() == [str(path)]
    pd.testing.assert_frame_equal(before.drop(columns="file"), after.drop(columns="file"))
    pd.testing.assert_frame_equal(after, shardgym.read_results(path))


def test_records_that_are_there_twice_are_refused(tmp_path):
    run(tmp_path, [TOY + "Halves"])
    plain = (tmp_path / "records.jsonl").read_bytes()
    pack(tmp_path)
    (tmp_path / "records.jsonl").write_bytes(plain)
    with pytest.raises(shardgym.InputError, match=r"holds records\.jsonl and records\.jsonl\.xz, expected one of them"):
        shardgym.read_results(tmp_path)


def test_several_folders_and_patterns_are_one_table(tmp_path):
    for name in ("a", "b", "c"):
        run(tmp_path / "runs" / name, [TOY + "Halves"])
    folders = [tmp_path / "runs" / "a", str(tmp_path / "runs" / "c")]
    frame = shardgym.read_results(folders)
    assert frame.groupby("file").size().tolist() == [3, 3]
    assert len(shardgym.read_results(str(tmp_path / "runs" / "[ab]"))) == 6
    assert len(shardgym.read_results(tmp_path / "**" / "records.jsonl")) == 9
    assert len(shardgym.read_results([*folders, tmp_path / "runs" / "*"])) == 9
    with pytest.raises(shardgym.InputError, match=r"fits no file or folder: expected a pattern"):
        shardgym.read_results(tmp_path / "runs" / "d*")
    with pytest.raises(shardgym.InputError, match="no records yet"):
        shardgym.read_results([])


def test_what_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(shardgym.InputError, match="does not exist"):
        shardgym.read_results(tmp_path / "nowhere")
    with pytest.raises(shardgym.InputError, match="expected a name or the path of a file, got int 3"):
        shardgym.read_results(3)
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(shardgym.InputError, match="no records yet"):
        shardgym.read_results(tmp_path)


def test_without_pandas_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(shardgym.MissingDependencyError, match=r"needs 'pandas', .*shardgym\[data\]"):
        shardgym.read_results(tmp_path)
