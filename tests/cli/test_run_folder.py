"""The folder that run writes to: its own records alone, and never the current folder by accident."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import toy_tasks

from shardgym.cli import main


@pytest.fixture
def command(tmp_path, monkeypatch):
    """`run` on a suite file of two toy tasks, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toys.json").write_text(json.dumps([task.to_dict() for task in toy_tasks(2)]))
    return ["run", "--suite", "toys.json", "--cost", "roofline", "--oracle", "roofline", "--json"]


def test_records_of_folders_below_are_not_shown(command, tmp_path, capsys):
    assert main([*command, "--solver", "dim_greedy", "--out", "all/one"]) == 0
    capsys.readouterr()
    assert main([*command, "--solver", "random", "--out", "all"]) == 0
    (ranking,) = json.loads(capsys.readouterr().out)["rankings"]
    assert [row["solver"] for row in ranking["rows"]] == ["random"]
    assert "dim_greedy" not in (tmp_path / "all/table.md").read_text()


def test_records_of_folders_below_are_not_read(command, tmp_path, capsys):
    """Damaged or of the same solver, they are no hindrance."""
    assert main([*command, "--solver", "random", "--out", "all/same"]) == 0
    (tmp_path / "all/damaged").mkdir()
    (tmp_path / "all/damaged/records.jsonl").write_text("{}\n")
    assert main([*command, "--solver", "random", "--out", "all"]) == 0


def test_an_empty_folder_name_is_refused(command, tmp_path, capsys):
    assert main([*command, "--solver", "random", "--out", ""]) == 2
    error = "Invalid value for '--out': expected the path of a folder, got ''; '.' is the current one"
    assert capsys.readouterr().err == f"shardgym: error: {error}; see 'shardgym run --help'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["toys.json"]
    assert main(["collect", "--out", ""]) == 2
    assert main(["pretrain", "data", "--out", ""]) == 2
    assert capsys.readouterr().err.count("expected the path of a folder, got ''") == 2
