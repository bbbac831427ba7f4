"""The command itself: help, exit codes, close matches, what is imported or missing, and readers that go away."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys

import click
import pytest

import shardgym
from shardgym import cli
from shardgym.cli import PLAN, ROOT, main

COMMANDS = sorted({*ROOT.lazy} - {"plan"}) + [f"plan {name}" for name in PLAN.lazy]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a copy of the process")
def test_a_copy_of_the_process_ends_by_sigterm_as_if_nothing_handled_it():
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, functools.partial(cli._terminate, os.getppid()))
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_help_lists_every_command(output_of):
    text = output_of(["--help"]).out
    assert all(f"  {name} " in text for name in ROOT.lazy)
    assert "..." not in text.partition("Commands:")[2]
    assert output_of(["--version"]).out == f"shardgym {shardgym.__version__}\n"


@pytest.mark.parametrize("group", [ROOT, PLAN])
def test_summaries_are_those_of_the_commands(group):
    context = click.Context(group)
    shown = {name: summary for name, (_, summary) in group.lazy.items()}
    assert shown == {name: group.get_command(context, name).get_short_help_str(70) for name in shown}


def test_help_imports_no_command():
    code = "import sys; from shardgym.cli import main; main(['--help']); print([m for m in sys.modules if m in %r])"
    heavy = ("pydantic", "scipy", "numba", "torch", "shardgym.cli.run")
    done = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_takes_json(name, output_of):
    text = output_of([*name.split(), "--help"]).out
    assert text.startswith(f"Usage: shardgym {name} [OPTIONS]")
    assert "--json" in text
    assert len(text) > 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command; see 'shardgym --help'"),
        (["foo"], "No such command 'foo'; see 'shardgym --help'"),
        (["plan", "shwo"], "No such command 'shwo'. Did you mean 'show'?; see 'shardgym plan --help'"),
        (["run"], "Missing option '--suite'; see 'shardgym run --help'"),
        (
            ["run", "--seed", "0,1"],
            "Invalid value for '--seed': '0,1' is not a valid integer range; give it once for each value; see "
            "'shardgym run --help'",
        ),
        (["run", "--limit", "0"], "Invalid value for '--limit': 0 is not in the range x>=1; see 'shardgym run --help'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments, message, output_of):
    captured = output_of(arguments, 2)
    assert (captured.out, captured.err) == ("", f"shardgym: error: {message}\n")


def test_an_unknown_option_is_answered_with_the_closest(output_of):
    error = output_of(["solve", "t", "--outptu", "x"], 2).err
    assert error.startswith("shardgym: error: No such option")
    assert "--output" in error
    assert error.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error():
    """Standard output is a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        process = subprocess.run(
            [sys.executable, "-m", "shardgym", "list", "pools"], stdout=gone, stderr=subprocess.PIPE, text=True
        )
    assert (process.returncode, process.stderr) == (cli.BROKEN_PIPE, "")


@pytest.mark.parametrize(
    ("arguments", "code", "closed"), [("check-solver random", 0, ">&-"), ("list foo", 2, ">&- 2>&-")]
)
def test_closed_standard_streams_are_no_error(arguments, code, closed):
    """Python has no stream then, and the next file that is opened would take its number."""
    command = f"exec {sys.executable} -m shardgym {arguments} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_one_line(monkeypatch, output_of):
    def press(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_invoke", press)
    assert output_of(["list", "costs"], 130).err == "shardgym: error: interrupted\n"
    assert output_of(["run"], 130).err == "shardgym: error: interrupted; the same command resumes the run\n"


@pytest.mark.parametrize("kind", ["suites", "solvers", "costs", "envs", "pools", "topologies"])
def test_lists_print_a_table_or_json(kind, output_of):
    rows = json.loads(output_of(["list", kind, "--json"]).out)
    assert rows
    text = output_of(["list", kind]).out
    assert all(str(next(iter(row.values()))) in text for row in rows)


def test_solvers_are_listed_with_the_suites_that_weights_ship_for(capsys):
    assert main(["list", "solvers", "--json"]) == 0
    weights = {row["solver"]: row.get("weights for") for row in json.loads(capsys.readouterr().out)}
    learned = {"autoshard", "dreamshard", "ppo", "surco"}
    assert {name for name, suites in weights.items() if suites} == learned | {"ppo_columns", "ppo_any"}
    assert all({"dlrm4-v1", "dlrm8-v1"} <= set(weights[name].split(", ")) for name in learned)
    assert weights["ppo_columns"] == "dlrm4-v2+dlrm8-v2+wide8-v2+tight4-v2+tight8-v2+hetero4-v2"
    assert weights["ppo_any"] == "dlrm4-gpu-v1+dlrm8-gpu-v1+nodes16-v1"


def test_an_error_that_nobody_foresaw_is_one_line(monkeypatch, output_of):
    monkeypatch.setattr("shardgym.cli._invoke", lambda arguments: {}["x"])
    told = output_of(["list", "costs"], 1).err
    assert told == "shardgym: error: unexpected KeyError: 'x'; set SHARDGYM_DEBUG=1 for a traceback\n"
    monkeypatch.setenv("SHARDGYM_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["list", "costs"])


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
def test_without_torchrec_commands_say_what_to_install_and_others_work(command, output_of):
    said = output_of([*command, "-o", "out.json"], 2).err
    missing = "torchrec" if importlib.util.find_spec("fbgemm_gpu") else "fbgemm_gpu"
    assert f"needs '{missing}', which is not installed: pip install" in said
    assert "pip install tensordict pyre-extensions && pip install --no-deps torchrec==1.8.0" in said
    assert main(["list", "solvers"]) == 0
