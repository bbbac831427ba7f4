"""The `shardgym` command: a thin layer over the Python API, built on click.

Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted, 143 terminated. One line on standard error
says why. With SHARDGYM_DEBUG=1 in the environment, an error that nobody foresaw shows its traceback instead.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from shardgym import __version__
from shardgym.cli import checks, migrate, plans, records, run, solve, sweep, tables, torchrec, training
from shardgym.cli.common import INTERRUPTED
from shardgym.errors import ShardGymError, one_line

BROKEN_PIPE = 141
TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM, as an exception: what is open is closed, and temporary files are removed."""


PLAN = click.Group(
    "plan",
    [plans.show, plans.diff, migrate.plan_migrate, torchrec.plan_export, torchrec.plan_import],
    no_args_is_help=False,
    help="Show, compare, move between, export and import plans.",
)

ROOT = click.Group(
    "shardgym",
    [
        checks.list_names, run.run, solve.solve, PLAN, plans.measure, records.verify, run.leaderboard,
        run.plot, sweep.sweep_machines, tables.import_tables, torchrec.import_torchrec, checks.check_solver,
        training.collect, training.pretrain, training.fit, checks.doctor,
    ],
    no_args_is_help=False,
    help="Benchmark for embedding-table sharding, measured with real kernels.",
    epilog="'shardgym COMMAND --help' explains a command. Every command takes --json. "
    "Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)  # fmt: skip
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
