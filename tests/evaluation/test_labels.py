"""Labels: one solver with different settings in one run, its records and its table."""

import pytest
from evaluation_toys import TOY, CountCost, ToySuite, toy_tasks

from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.evaluation import SolverSpec, evaluate
from shardgym.evaluation.result import RunInfo
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.tables import cautions


def run(out, *specs, **options):
    return evaluate(ToySuite(toy_tasks()), list(specs), out=out, judge=CountCost(), oracle="roofline", **options)


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
    with pytest.raises(InputError, match=f"'one' with settings {TOY}Tuned .*give this one a label of its own, give a"):
        run(tmp_path, other)
    with pytest.raises(InputError, match="'one' is given twice with different settings: label one"):
        run(tmp_path / "new", ONE, other)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("two words", "label 'two words': expected at most 60 letters"),
        ("a|b", "expected at most 60 letters"),
        ("x" * 61, "expected at most 60 letters"),
        ("dim_greedy", "label 'dim_greedy' is the name of another solver than 'random'"),
    ],
)
def test_labels_that_mislead_are_refused(tmp_path, label, message):
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        run(tmp_path / "x", SolverSpec("random", label=label))
    assert not (tmp_path / "x").exists()


def test_labels_on_the_command_line(tmp_path, capsys):
    command = ["run", "--suite", "tiny-v1", "--limit", "2", "--cost", "roofline", "--out", str(tmp_path)]
    assert main([*command, "--solver", "narrow=neuroshard,beam_width=1", "--solver", "neuroshard"]) == 0
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert "narrow is neuroshard with beam_width=1." in capsys.readouterr().out
    assert main(["verify", str(tmp_path)]) == 0
    for wrong, said in (("=neuroshard", "unknown solver '=neuroshard'"), ("narrow=", "the name is missing")):
        assert main([*command, "--solver", wrong]) == 2
        assert said in capsys.readouterr().err
