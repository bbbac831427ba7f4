"""shardgym.read_results: records as a pandas DataFrame."""

import sys

import pytest
from evaluation_toys import TOY, DriftingCost, ToySuite, pack, toy_tasks

import shardgym
from shardgym.evaluation import SolverSpec, evaluate

pd = pytest.importorskip("pandas")


@pytest.fixture
def results(tmp_path):
    """Records of a label, and of a solver that gives up, with two seeds."""
    solvers = [SolverSpec(TOY + "Tuned", {"k": 1}, "tuned"), TOY + "GivesUp"]
    costs = {"judge": DriftingCost(), "oracle": "roofline"}
    return evaluate(ToySuite(toy_tasks()), solvers, out=tmp_path / "a", seeds=[0, 3], **costs)


def test_one_row_per_record_with_its_figures(results, tmp_path):
    frame = shardgym.read_results(tmp_path)
    for name in ("suite", "task_index", "task_hash", "solver", "seed", "status", "judge"):
        assert frame[name].tolist() == [getattr(r, name) for r in results], name
    tuned, failed = frame[frame["solver"] == "tuned"], frame[frame["status"] == "infeasible"]
    assert tuned["total_ms"].tolist() == [r.total_ms for r in results if r.solver == "tuned"]
    assert set(tuned["made_from"]) == {TOY + "Tuned"}
    assert (set(tuned["noise"]), set(tuned["judge_version"])) == ({0.01}, {"1"})
    assert len(failed) == 6
    assert failed[["total_ms", "noise"]].isna().all(axis=None)
    assert set(frame["file"]) == {str(tmp_path / "a" / "records.jsonl")}


def test_packed_records_and_folders_below_are_read(results, tmp_path):
    before = shardgym.read_results(tmp_path / "a" / "records.jsonl")
    file = pack(tmp_path / "a")
    after = shardgym.read_results(tmp_path)
    pd.testing.assert_frame_equal(before.drop(columns="file"), after.drop(columns="file"))
    assert set(after["file"]) == {str(file)}
    (tmp_path / "a" / "records.jsonl").write_text("")
    with pytest.raises(shardgym.InputError, match=r"holds both records\.jsonl and records\.jsonl\.xz: remove one"):
        shardgym.read_results(tmp_path)


def test_it_says_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(shardgym.InputError, match="does not exist"):
        shardgym.read_results(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(shardgym.MissingDependencyError, match=r"needs 'pandas', .*shardgym\[data\]"):
        shardgym.read_results(tmp_path)
