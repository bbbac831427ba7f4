"""NAME,KEY=VALUE, tasks by suite and index, and one line for what is not understood."""

import json

import pytest

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


def test_check_solver_passes_settings_and_shows_them(capsys):
    assert main(["check-solver", "neuroshard,beam_width=1,levels=0", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["solver"], page["ok"]) == ("neuroshard,beam_width=1,levels=0", True)
    assert main(["check-solver", "neuroshard,beam_width=0"]) == 2
    assert "beam_width 0 is not a whole number from 1 on" in capsys.readouterr().err
    assert main(["check-solver", "evaluation_toys:Crashes"]) == 1


def test_a_device_is_given_once(here, capsys):
    (here / "plan.json").write_text('{"t0": 0, "t1": 1, "t2": 0, "t3": 1}')
    assert main(["measure", "task.json", "plan.json", "--cost", "fbgemm,device=cuda", "--device", "cpu"]) == 2
    assert "every key once, got 'device=cpu' for a setting" in capsys.readouterr().err


def test_a_file_with_the_name_of_a_suite_is_a_task(here):
    (here / "task.json").rename("quick-v2")
    assert main(["solve", "quick-v2", "-o", "plan.json", "--solver", "random"]) == 0
