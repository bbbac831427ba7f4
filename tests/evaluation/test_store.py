"""What records hold, packed folders, solvers and tracks given as objects, and solvers under labels."""

import hashlib
import lzma
import platform
import re
import sys
from pathlib import Path

import pytest
from evaluation_toys import TOY, CountCost, Halves, Lopsided, ToySuite, Tuned, pack, toy_tasks

from shardgym.errors import InputError
from shardgym.evaluation import SolverSpec, evaluate
from shardgym.evaluation.result import RunInfo
from shardgym.files import append_flushed
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.tables import cautions
from shardgym.tasks.suites.spec import CostChoice, Track


def run(out, *solvers, **options):
    options = {"judge": CountCost.name, "oracle": "roofline", "isolate": False} | options
    return evaluate(ToySuite(toy_tasks()), solvers, out=out, **options)


@pytest.mark.parametrize("resume", ["missing", "all"])
def test_a_run_into_packed_records_is_told_how_to_unpack_them(tmp_path, resume):
    run(tmp_path, TOY + "Halves")
    path = pack(tmp_path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"unpack it with 'xz -d {re.escape(str(path))}', or give another folder$"):
        run(tmp_path, TOY + "Halves", resume=resume)
    assert path.read_bytes() == before
    path.with_suffix("").write_bytes(lzma.decompress(before))
    with pytest.raises(InputError, match=r"holds both .*: remove one of them"):
        run(tmp_path, TOY + "Halves", resume=resume)


def test_records_hold_all_arguments_and_where_they_come_from(tmp_path):
    (record, *_) = run(tmp_path, SolverSpec(TOY + "Tuned"), limit=1)
    assert {"python", "shardgym", "numpy"} <= set(record.versions)
    assert platform.release().startswith(record.versions[platform.system().lower()])
    assert record.started.endswith("+00:00")
    assert (record.solver_settings, record.resolved_settings) == ({}, {"k": 0})
    source = Path(sys.modules["evaluation_toys"].__file__).read_bytes()
    assert record.source_digest == hashlib.sha256(source).hexdigest()


@pytest.mark.parametrize("isolate", [True, False])
def test_classes_and_solvers_that_were_made_take_part(tmp_path, isolate):
    """A class by the name that makes it again; an object with the arguments that it keeps."""

    class Local(Halves):
        """Cannot be pickled."""

    results = run(tmp_path, Local, Lopsided, Tuned(3), limit=1, isolate=isolate)
    assert [r.solver for r in results] == ["test_store:Local", TOY + "Lopsided", TOY + "Tuned"]
    assert [r.solver_settings for r in results] == [{}, {}, {"k": 3}]
    assert [r.status for r in results] == ["ok"] * 3


def test_a_registered_class_has_its_registered_name(tmp_path):
    from baselines.greedy import SizeGreedy

    assert {r.solver for r in run(tmp_path, SizeGreedy, limit=1)} == {"size_greedy"}


def test_judge_and_oracle_come_from_a_track(tmp_path):
    track = Track(CostChoice(CountCost.name, {"tag": "lab"}), CostChoice("roofline"))
    (record,) = run(tmp_path / "own", TOY + "Halves", judge=None, oracle=None, track=track, limit=1)
    assert (record.judge, record.judge_settings, record.oracle) == (CountCost.name, {"tag": "lab"}, "roofline")
    assert record.hardware == "lab"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds=0: expected a list, such as [0]"),
        ({"resume": "none"}, "unknown resume 'none': known: all, missing"),
        ({"track": "simulator"}, "track: it sets judge and oracle: leave those out"),
        ({"judge": None, "oracle": None}, "suite 'toys' has no tracks: give judge and oracle"),
        ({"oracle": None}, "oracle: expected the name of a cost or a cost model, got None"),
    ],
)
def test_half_a_track_and_other_wrong_arguments_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(tmp_path / "out", TOY + "Halves", **options)
    assert not (tmp_path / "out").exists()


def test_what_a_full_disk_takes_of_a_record_is_removed_again(tmp_path):
    """A limit of the file's size cuts a write as a full disk does."""
    resource = pytest.importorskip("resource")
    run(tmp_path, TOY + "Halves", limit=1)
    path = tmp_path / "records.jsonl"
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(InputError, match="only a part could be written; is the disk full"):
            append_flushed(path, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


ONE, TWO = SolverSpec(TOY + "Tuned", {"k": 1}, "one"), SolverSpec(TOY + "Tuned", {"k": 2}, "two")


def test_a_solver_takes_part_under_several_labels(tmp_path):
    results = run(tmp_path, ONE, TWO)
    assert {(r.solver, r.made_from, r.solver_settings["k"]) for r in results} == {
        ("one", TOY + "Tuned", 1), ("two", TOY + "Tuned", 2),
    }  # fmt: skip
    assert RunInfo.beside(tmp_path).solvers == ("one", "two")
    notes = cautions(load_boards([tmp_path])[0])
    assert f"one is {TOY}Tuned with k=1." in notes
    assert f"two is {TOY}Tuned with k=2." in notes


def test_a_label_alone_renames(tmp_path):
    run(tmp_path, SolverSpec("random", label="dice"), SolverSpec("random"), SolverSpec("random", label="random"))
    ranking = rank(load_boards([tmp_path])[0])
    assert {row.solver for row in ranking.rows} == {"dice", "random"}
    assert "dice is random." in cautions(ranking.board)


def test_resume_knows_labels(tmp_path):
    first = run(tmp_path, ONE)
    both = run(tmp_path, TWO, ONE)
    assert [r.solver for r in both] == ["two", "one"] * (len(both) // 2)
    assert [r.started for r in both[1::2]] == [r.started for r in first]


@pytest.mark.parametrize("other", [SolverSpec(TOY + "Tuned", {"k": 2}, "one"), SolverSpec("random", {}, "one")])
def test_a_label_means_one_thing_in_a_folder(tmp_path, other):
    run(tmp_path, ONE)
    with pytest.raises(InputError, match=f"'one' with settings {TOY}Tuned .*give the solver another label, give a"):
        run(tmp_path, other)
    with pytest.raises(InputError, match="'one' is given twice with different settings: label one"):
        run(tmp_path / "new", ONE, other)
    assert {result.solver for result in run(tmp_path, TOY + "Halves")} == {TOY + "Halves"}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("two words", "label 'two words': expected at most 60 letters"),
        ("a|b", "expected at most 60 letters"),
        ("x" * 61, "expected at most 60 letters"),
        ("dim_greedy", "label 'dim_greedy' of 'random' is the name of another solver"),
    ],
)
def test_labels_that_mislead_are_refused(tmp_path, label, message):
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        run(tmp_path / "x", SolverSpec("random", label=label))
    assert not (tmp_path / "x").exists()
