"""Without TorchRec: the adapter says what to install, and nothing else needs it."""

import sys

import pytest

from shardgym.cli import main

COMMANDS = "pip install tensordict pyre-extensions && pip install --no-deps torchrec==1.8.0"


@pytest.fixture
def without_torchrec(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("shardgym.torchrec")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torchrec", *(name for name in sys.modules if name.startswith("torchrec."))):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_torchrec")
@pytest.mark.parametrize(
    "command",
    [
        ["import-torchrec", "m:f", "--devices", "2", "--batch-size", "8"],
        ["compare", "m:f", "--plan", "torchrec", "--plan", "shardgym", "--batch-size", "8"],
        ["plan", "export", "tiny-v1/0", "p.json"],
        ["plan", "import", "tiny-v1/0", "p.json"],
    ],
)
def test_commands_say_what_to_install(command, capsys):
    assert main([*command, "-o", "out.json"]) == 2
    said = capsys.readouterr().err
    assert "needs 'torchrec', which is not installed: pip install" in said
    assert COMMANDS in said
    assert main(["list", "solvers"]) == 0
