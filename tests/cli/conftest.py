"""Commands are called in a folder of their own."""

import pytest
from evaluation_toys import toy_tasks

from shardgym.cli import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder, in which there is a task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(toy_tasks(1)[0].to_json())
    return tmp_path


@pytest.fixture
def output_of(capsys):
    """A function that runs a command, which has to end with this code, and returns what it printed."""

    def run(command, code=0):
        capsys.readouterr()
        assert main(command) == code
        return capsys.readouterr()

    return run
