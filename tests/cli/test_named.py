"""NAME,KEY=VALUE: costs and solvers with settings on the command line."""

from __future__ import annotations

import pytest

from shardgym import InputError
from shardgym.cli import main
from shardgym.cli.options import parse_spec


def test_values_are_json_where_they_can_be_read_as_such():
    assert parse_spec("simulator,weights=a/b.c,role=judge") == ("simulator", {"weights": "a/b.c", "role": "judge"})
    assert parse_spec("m:Class,n=3,x=0.5,on=true,none=null,text=\"3\"") == (
        "m:Class", {"n": 3, "x": 0.5, "on": True, "none": None, "text": "3"},
    )  # fmt: skip
    assert parse_spec("random") == ("random", {})


def test_an_equals_sign_belongs_to_the_value():
    assert parse_spec("cost,key=a=b").settings == {"key": "a=b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a=1", "the name is missing"),
        ("", "the name is missing"),
        ("cost,weights", "got 'weights' for a setting"),
        ("cost,=3", "got '=3' for a setting"),
        ("cost,a=1,", "got '' for a setting"),
        ("cost,a=1,a=2", "setting 'a' is given twice"),
    ],
)
def test_what_is_not_that_gets_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_spec(text)
    assert "\n" not in str(caught.value)


def test_solver_settings_reach_the_solver_and_the_records(tmp_path, capsys):
    command = ["run", "--suite", "tiny-v1", "--limit", "1", "--cost", "roofline", "--out", str(tmp_path)]
    command += ["--oracle", "roofline"]
    assert main([*command, "--solver", "neuroshard,beam_width=0"]) == 2
    assert "beam_width of the search must be an integer from 1 on, got 0" in capsys.readouterr().err
    assert main([*command, "--solver", "neuroshard,beam_width=1,levels=0"]) == 0
    assert '"solver_settings":{"beam_width":1,"levels":0}' in (tmp_path / "records.jsonl").read_text().replace(" ", "")


def test_cost_settings_reach_the_cost(tmp_path, capsys):
    command = ["run", "--suite", "tiny-v1", "--limit", "1", "--solver", "random", "--out", str(tmp_path)]
    assert main([*command, "--cost", "roofline,wrong=1"]) == 2
    assert "roofline" in capsys.readouterr().err
    assert main([*command, "--cost", "roofline", "--oracle", "simulator,weights=nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
