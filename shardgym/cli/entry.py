"""main: finds the command, imports its module alone, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import shardgym
from shardgym.cli.command_table import COMMANDS, Command, overview
from shardgym.cli.parser import Parser, UsageError
from shardgym.errors import ShardGymError, UnknownNameError

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tables may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away (`| head`): nothing to tell, and nothing may be flushed there at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except ShardGymError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 1)


def _replace_closed_streams() -> None:
    """Let a process that was started without standard output or error (`>&-`) write to nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _fail(message: str, code: int) -> int:
    print(f"shardgym: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"shardgym {shardgym.__version__}")
        return 0
    if arguments[:1] in (["--help"], ["-h"]):
        print(overview())
        return 0
    command, rest = _find(arguments)
    if command is None:
        print(overview(" ".join(arguments[: len(arguments) - len(rest)])))
        return 0
    module = importlib.import_module(command.module)
    parser = Parser(prog=f"shardgym {command.name}", description=module.__doc__)
    module.configure(parser)
    parsed = parser.parse(rest)
    return 0 if parsed is None else int(module.run(parsed))


def _find(arguments: list[str]) -> tuple[Command | None, list[str]]:
    """Return (command, its arguments); no command when help about a group of commands was asked for."""
    if not arguments:
        raise UsageError("expected a command, see 'shardgym --help'")
    first, rest = arguments[0], arguments[1:]
    group = {name.partition(" ")[2]: c for name, c in COMMANDS.items() if name.partition(" ")[0] == first}
    if not group:
        raise UnknownNameError("command", first, {name.partition(" ")[0] for name in COMMANDS})
    if "" in group:
        return group[""], rest
    if not rest:
        raise UsageError(f"expected one of {', '.join(group)} after '{first}'")
    if rest[0] in ("--help", "-h"):
        return None, rest
    if rest[0] not in group:
        raise UnknownNameError(f"command after '{first}'", rest[0], group)
    return group[rest[0]], rest[1:]
