"""NAME,KEY=VALUE, tasks by suite and index, and one line for what is not understood."""

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym import InputError
from shardgym.cli import main
from shardgym.cli.common import parse_spec


def test_values_are_json_where_they_can_be_read_as_such():
    assert parse_spec("simulator,weights=a/b.c,role=judge") == ("simulator", {"weights": "a/b.c", "role": "judge"})
    assert parse_spec("m:Class,n=3,x=0.5,on=true,none=null,text=\"3\"") == (
        "m:Class", {"n": 3, "x": 0.5, "on": True, "none": None, "text": "3"},
    )  # fmt: skip
    assert parse_spec("random") == ("random", {})
    assert parse_spec("cost,key=a=b") == ("cost", {"key": "a=b"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a=1", "the name is missing"),
        ("", "the name is missing"),
        ("cost,weights", "got 'weights' for a setting"),
        ("cost,=3", "got '=3' for a setting"),
        ("cost,a=1,", "got '' for a setting"),
        ("cost,a=1,a=2", "every key once, got 'a=2' for a setting"),
        ("cost,name=x", "got 'name=x' for a setting"),
    ],
)
def test_what_is_not_that_gets_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_spec(text)
    assert "\n" not in str(caught.value)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty current folder with a task file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    return tmp_path


def test_check_solver_passes_settings_and_shows_them(capsys):
    assert main(["check-solver", "neuroshard,beam_width=1,levels=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solver"] == "neuroshard,beam_width=1,levels=0"
    assert main(["check-solver", "neuroshard,beam_width=0"]) == 2
    assert "beam_width 0 is not a whole number from 1 on" in capsys.readouterr().err


SOLVE = ["-o", "plan.json", "--solver"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "task.json", *SOLVE, "neuroshard,beam_widht=1"],
         "solver 'neuroshard' has no setting 'beam_widht': did you mean beam_width?"),
        (["solve", "task.json", *SOLVE, "random", "--oracle", "roofline,device=cuda"],
         "cost 'roofline' has no setting 'device': known: hardware"),
        (["solve", "task.json", *SOLVE, "random", "--time-limit", "0"],
         "Invalid value for '--time-limit': 0.0 is not in the range x>0; see 'shardgym solve --help'"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_one_line(here, capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"shardgym: error: {message}\n")
    assert sorted(path.name for path in here.iterdir()) == ["task.json"]


def test_a_device_is_given_once(here, capsys):
    (here / "plan.json").write_text('{"t0": 0, "t1": 1, "t2": 0, "t3": 1}')
    assert main(["measure", "task.json", "plan.json", "--cost", "fbgemm,device=cuda", "--device", "cpu"]) == 2
    assert "every key once, got 'device=cpu' for a setting" in capsys.readouterr().err


def test_a_file_with_the_name_of_a_suite_is_a_task(here):
    (here / "task.json").rename("quick-v1")
    assert main(["solve", "quick-v1", *SOLVE, "random"]) == 0
