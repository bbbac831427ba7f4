"""The `shardgym` command: a thin layer over the Python API, built on click.

Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted, 143 terminated. One line on standard error
says why. With SHARDGYM_DEBUG=1 in the environment, an error that nobody foresaw shows its traceback instead.
"""

import functools
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardgym import __version__
from shardgym.errors import ShardGymError, one_line

INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM as an exception, so that open resources are closed and temporary files removed."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called: `commands` are `module:function` and a summary."""

    def __init__(self, name: str, commands: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(name, no_args_is_help=False, **options)
        self.lazy = dict(commands)
        self.commands = dict.fromkeys(commands, self)  # click suggests names of these

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None where there is no such command."""
        if name not in self.lazy:
            return None
        module, _, function = self.lazy[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(f"shardgym.cli.{module}".rstrip(".")), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in sorted(self.lazy.items())])


PLAN = LazyGroup(
    "plan",
    {
        "show": ("plans:show", "Draw a plan: memory, time and the bottleneck device."),
        "diff": ("plans:diff", "Compare two plans, A and B."),
        "export": ("torchrec:plan_export", "Write a plan as TorchRec's ShardingPlan."),
        "import": ("torchrec:plan_import", "Read TorchRec's ShardingPlan as a plan."),
    },
    help="Show, compare, export and import plans.",
)

ROOT = LazyGroup(
    "shardgym",
    {
        "list": ("checks:list_names", "List suites, solvers, costs, envs, pools or topologies."),
        "run": ("run:run", "Run solvers on a suite and rank them."),
        "solve": ("solve:solve", "Make one plan for one task and write it to a file."),
        "plan": (":PLAN", "Show, compare, export and import plans."),
        "measure": ("plans:measure", "Measure plans for one task."),
        "verify": ("run:verify", "Score stored plans again and compare with their records."),
        "leaderboard": ("run:leaderboard", "Print ranked tables from stored records."),
        "sweep": ("sweep:sweep_machines", "Plan a model for other GPUs and numbers of them."),
        "import-tables": ("tables:import_tables", "Make a task from your tables, or from a log of ids."),
        "import-torchrec": ("torchrec:import_torchrec", "Make a task from your TorchRec model."),
        "compare": ("compare:compare", "Measure which plan is faster, in real steps on your ranks."),
        "check-solver": ("checks:check_solver", "Check that a solver follows the rules of the interface."),
        "collect": ("training:collect", "Measure the training data of simulators."),
        "pretrain": ("training:pretrain", "Train the simulator on measured samples."),
        "fit": ("training:fit", "Train a learned solver and write its weights."),
        "doctor": ("doctor:doctor", "Say what this machine can measure."),
    },
    help="Benchmark for embedding-table sharding, measured with real kernels.",
    epilog="'shardgym COMMAND --help' explains a command. Every command takes --json. "
    "Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
click.version_option(__version__, prog_name="shardgym", message="%(prog)s %(version)s")(ROOT)


#: What to do after an interruption, by command.
RESUMES = {
    "run": "; the same command resumes the run",
    "collect": "; the same command continues",
    "fit": "; the same command with --resume continues from the last checkpoint, if the solver keeps any",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; `argv` is without the program's name, None for the process's own."""
    for name in ("stdout", "stderr"):
        # A process that was started without a stream (`>&-`) writes to nowhere.
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tables may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGTERM, functools.partial(_terminate, os.getpid())) if in_main_thread else None
    arguments = list(sys.argv[1:] if argv is None else argv)
    remedy = "".join(RESUMES.get(name, "") for name in arguments[:1])
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader is gone (`| head`): print nothing, and flush nothing there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail(f"interrupted{remedy}", INTERRUPTED)
    except Terminated:
        return _fail(f"terminated{remedy}", TERMINATED)
    except click.UsageError as error:
        path = "shardgym" if error.ctx is None else error.ctx.command_path
        listed = isinstance(error, click.BadParameter) and getattr(error.param, "multiple", False)
        repeat = "; give it once for each value" if listed and "," in error.message else ""
        return _fail(f"{error.format_message().rstrip('.')}{repeat}; see '{path} --help'", 2)
    except ShardGymError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("SHARDGYM_DEBUG"):
            raise
        return _fail(f"unexpected {one_line(error)}; set SHARDGYM_DEBUG=1 for a traceback", 1)
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _terminate(process: int, number: int, frame: object) -> None:  # noqa: ARG001
    if os.getpid() != process:  # a copy of this process, such as a worker of a solver's pool
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise Terminated


def _invoke(arguments: list[str]) -> int:
    """Call the command. `ROOT.main` would turn Ctrl-C and broken pipes into exits of its own."""
    try:
        with ROOT.make_context("shardgym", arguments) as context:
            return int(ROOT.invoke(context))
    except click.exceptions.Exit as done:  # after --help and --version
        return done.exit_code


def _fail(message: str, code: int) -> int:
    print(f"shardgym: error: {' '.join(message.split())}", file=sys.stderr)
    return code
