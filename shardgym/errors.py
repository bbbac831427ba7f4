"""Errors that ShardGym raises on purpose.

Every message is one line: the value, what was expected, what to do. The command line prints the message alone and exits
with `exit_code`: 2 for bad usage or input, 1 for a result that failed.
"""

import difflib
import importlib
import math
import numbers
import operator
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

_LONGEST_LINE = 500


_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxlevel = 3
_SHORT_REPR.maxstring = 60
_SHORT_REPR.maxlong = 60
_SHORT_REPR.maxother = 60


def short_repr(value: Any) -> str:
    """Return the beginning of a value's `repr`, at most 60 characters, however large and nested the value is."""
    return _SHORT_REPR.repr(value)[:60]


class ShardGymError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class InputError(ShardGymError, ValueError):
    """Malformed input, input out of range, or input for something else."""

    exit_code = 2


class UnknownNameError(InputError):
    """A name is not registered; the message offers the closest names.

    Args:
        kind: what was looked up, e.g. "solver".
        name: the unknown name, or whatever was passed as one.
        known: the names that exist.
        also: end of the message, for what else is accepted.
    """

    def __init__(self, kind: str, name: object, known: Iterable[str], also: str = "") -> None:
        super().__init__(f"unknown {kind} '{name}': {closest(name, known)}{also}")


def closest(name: object, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with up to three names that are really close, or else all that are known."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names) or 'none'}"


#: How to install what cannot be an extra: TorchRec always depends on FBGEMM's CUDA wheel.
_COMMANDS = {"torchrec": "pip install tensordict pyre-extensions && pip install --no-deps torchrec==1.8.0"}


def install_command(extra: str) -> str:
    """Return the command that installs an extra, or TorchRec."""
    return _COMMANDS.get(extra, f"pip install 'shardgym[{extra}]'")


class MissingDependencyError(ShardGymError, ImportError):
    """An optional dependency that is needed here is not installed.

    Args:
        module: the module that could not be imported.
        extra: the extra of `shardgym` that installs it, or "torchrec".
        purpose: what needs the module.
    """

    exit_code = 2

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs '{module}', which is not installed: {install_command(extra)}")


class InfeasiblePlanError(ShardGymError):
    """A plan cannot be executed for its task. `ShardingPlan.validate` raises it.

    Args:
        problems: one sentence per problem, each naming device, table and bytes, columns or rows.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        others = len(self.problems) - 1
        more = f" (and {others} more problem{'s' * (others > 1)})" if others else ""
        super().__init__(self.problems[0] + more)


class NoFeasiblePlanError(ShardGymError):
    """A solver found no feasible plan. The message names the table that does not fit."""


#: What a solver may raise to say that it found no feasible plan.
NO_PLAN = (NoFeasiblePlanError, InfeasiblePlanError)


class MeasurementError(ShardGymError):
    """A measurement failed, as when a worker died, hung or ran out of memory, or cannot be made on this system."""


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order, each once, with runs of them as ranges: "0, 3-7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def error_text(error: BaseException) -> str:
    """Return an error of another library in one line: its class, the first line of its message, and its cause."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
    return text if error.__cause__ is None else f"{text} ({error_text(error.__cause__)})"


def one_line(error: BaseException, with_type: bool = True) -> str:
    """Return an error as one printable line of at most 500 characters."""
    try:
        text = str(error)
    except Exception:
        text = "its message cannot be printed"
    return printable_line(f"{type(error).__name__}: {text}" if with_type and text else text or type(error).__name__)


def printable_line(text: str) -> str:
    """Return text as one line of at most 500 characters; what cannot be printed is escaped."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"


def import_extra(module: str, purpose: str, extra: str = "data") -> Any:
    """Import an optional module, which an extra of `shardgym` brings, for a purpose such as "reading samples".

    Raises:
        MissingDependencyError: it is not installed.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingDependencyError(package, extra, purpose) from None


def check_instance(name: str, value: Any, cls: type[Any], remedy: str = "") -> None:
    """Raise `InputError`, which ends in `remedy`, unless an argument is an instance of a class."""
    if not isinstance(value, cls):
        article = "an" if cls.__name__[0] in "AEIOU" else "a"
        end = f"; {remedy}" if remedy else ""
        raise InputError(
            f"{name}: expected {article} {cls.__name__}, got {type(value).__name__} {short_repr(value)}{end}"
        )


def check_seconds(name: str, seconds: float) -> None:
    """Raise `InputError` unless the time is a number of seconds above 0."""
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not (is_number and math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{name}: expected a number of seconds above 0, got {short_repr(seconds)}")


def check_int(name: str, value: Any, least: int = 0) -> int:
    """Return an integer, Python's or NumPy's, as an `int`; raises `InputError` when it is less than `least`."""
    # `operator.index` takes NumPy integers and refuses floats and text; booleans would pass as 0 and 1.
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name}: expected an integer >= {least}, got {short_repr(value)}")
    return number
