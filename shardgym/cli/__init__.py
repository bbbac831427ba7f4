"""The `shardgym` command: a thin layer over the Python API, built on click.

Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted, 143 terminated. One line on standard error
says why. With SHARDGYM_DEBUG=1 in the environment, an error that nobody foresaw shows its traceback instead.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from shardgym import __version__
from shardgym.errors import ShardGymError, UnknownNameError, one_line

INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM, as an exception: what is open is closed, and temporary files are removed."""


class CommandEntry(NamedTuple):
    """Where a command is defined, and one line for the overview."""

    module: str
    function: str
    summary: str


#: All commands by their one or two words.
COMMANDS = {
    "list": CommandEntry("checks", "list_names", "what there is: suites, solvers, costs, envs, pools, topologies"),
    "run": CommandEntry("run", "run", "solvers on a suite, scored by a judge, one record per plan, ranked at the end"),
    "solve": CommandEntry("solve", "solve", "one plan for one task"),
    "measure": CommandEntry("plans", "measure", "the cost of plans for one task"),
    "plan show": CommandEntry("plans", "show", "devices, memory and cost of a plan, drawn in the terminal"),
    "plan diff": CommandEntry("plans", "diff", "what differs between two plans for the same task"),
    "plan export": CommandEntry("torchrec", "export_plan", "a plan as TorchRec's ShardingPlan"),
    "plan import": CommandEntry("torchrec", "import_plan", "TorchRec's ShardingPlan as a plan"),
    "task make": CommandEntry("tasks", "make", "a task from your own tables and machine"),
    "import-torchrec": CommandEntry("torchrec", "import_torchrec", "a task from your own TorchRec model"),
    "drop": CommandEntry("records", "drop", "take a solver, a seed or tasks out of a folder of records"),
    "verify": CommandEntry("records", "verify", "score stored plans again and compare"),
    "submit": CommandEntry("records", "submit", "whether a folder of records and its card can go onto a board"),
    "leaderboard": CommandEntry("run", "leaderboard", "ranked tables from stored records"),
    "plot": CommandEntry("run", "plot", "performance profiles, cost against time, and groups of tasks, for papers"),
    "check-solver": CommandEntry("checks", "check_solver", "whether a solver keeps the rules of the interface"),
    "collect": CommandEntry("training", "collect", "measured shard sets and exchanges to train simulators on"),
    "pool check": CommandEntry("checks", "pool_check", "a synthetic pool against the published statistics"),
    "pretrain": CommandEntry("training", "pretrain", "train the simulator on measured samples"),
    "fit": CommandEntry("training", "fit", "train a learned solver on tasks like those of a suite"),
    "doctor": CommandEntry("checks", "doctor", "what this machine can measure, versions, missing extras"),
}  # fmt: skip


class LazyGroup(click.Group):
    """A group whose help and error messages import no command. A command's module is imported when it runs.

    Args:
        name: what comes before its commands, e.g. "plan".
        entries: its commands by what comes after that, one word or two.
        **options: those of `click.Group`.
    """

    def __init__(self, name: str, entries: Mapping[str, CommandEntry], **options: Any) -> None:
        super().__init__(name, no_args_is_help=False, **options)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the first word of every command."""
        return list(dict.fromkeys(name.split()[0] for name in self._entries))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command. The first of two words is a group of its own."""
        if cmd_name in self._entries:
            entry = self._entries[cmd_name]
            command: click.Command = getattr(importlib.import_module(f"shardgym.cli.{entry.module}"), entry.function)
            return command
        prefix = f"{cmd_name} "
        below = {name.removeprefix(prefix): e for name, e in self._entries.items() if name.startswith(prefix)}
        return LazyGroup(cmd_name, below) if below else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a line that ends before the command."""
        if not args:
            raise click.UsageError(f"expected a command: {', '.join(self.list_commands(ctx))}", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with those that resemble it."""
        known = self.list_commands(ctx)
        if args[0] not in known:
            kind = "command" if ctx.parent is None else f"{self.name} command"
            raise UnknownNameError(kind, args[0], known)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the overview."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._entries.items()])


ROOT = LazyGroup(
    "shardgym",
    COMMANDS,
    help="Benchmark for embedding-table sharding, measured with real kernels.",
    epilog="'shardgym COMMAND --help' explains a command. Every command takes --json. "
    "Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
click.version_option(__version__, prog_name="shardgym", message="%(prog)s %(version)s")(ROOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    for name in ("stdout", "stderr"):
        # A process that was started without a stream (`>&-`) writes to nowhere.
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tables may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGTERM, _terminate) if in_main_thread else None
    try:
        code = _invoke(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away (`| head`): nothing to tell, and nothing may be flushed there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Terminated:
        return _fail("terminated", TERMINATED)
    except click.UsageError as error:
        path = "shardgym" if error.ctx is None else error.ctx.command_path
        return _fail(f"{error.format_message().rstrip('.')}; see '{path} --help'", 2)
    except ShardGymError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("SHARDGYM_DEBUG"):
            raise
        return _fail(f"unexpected {one_line(error)}; SHARDGYM_DEBUG=1 in the environment shows where", 1)
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    signal.signal(number, signal.SIG_IGN)  # once: what is being closed is not interrupted
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
