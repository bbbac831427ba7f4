"""What commands have in common: options, how tasks, costs and solvers are named, and what is printed."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.engines import ENGINES
from shardgym.errors import InputError, closest
from shardgym.evaluation.solver import Solver, make_solver
from shardgym.tasks.suites import load_suite, suite_names
from shardgym.tasks.task import ShardingTask, exact_bytes
from shardgym.tasks.topology import GIB, PRESETS, Topology

#: The cost that commands use which need one that runs everywhere.
DEFAULT_ORACLE = "roofline"

#: End of the help of commands that read tasks and plans.
TASK_AND_PLAN = (
    "TASK is a task file, or SUITE/INDEX such as quick-v1/0. PLAN is a plan file, or one device for every table: "
    '{"TABLE": DEVICE, ...} in .json, columns table,devices in .csv, several devices separated by blanks.'
)

#: What a value of an option is read as.
Parsed = TypeVar("Parsed")

#: How costs and solvers with settings are written, for help texts.
NOTATION = "NAME[,KEY=VALUE...]"


class Command(click.Command):
    """A command that takes no option for the value of the option before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse e.g. `--out --force`, which would write into a folder called "--force"."""
        options = {name: p for p in self.params if isinstance(p, click.Option) for name in p.opts}
        for given, value in itertools.pairwise(args):
            if given in options and not options[given].is_flag and value in options:
                raise click.BadOptionUsage(given, f"Option '{given}' requires an argument.", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # left out by click where an option has no value
            raise


# --- types of options -------------------------------------------------------------------------------------------------


class OneOf(click.ParamType):  # type: ignore[type-arg]  # older versions of click are not generic
    """A type that takes one of some names, suggests close ones, and names all where none is given.

    Args:
        kind: what the names are of, e.g. "device".
        names: the names.
        also: what else is accepted, for messages; it is not checked here then.
    """

    name = "name"

    def __init__(self, kind: str, names: Iterable[str], also: str = "") -> None:
        self._kind = kind
        self._names = list(names)
        self._also = also

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; refuse one that is unknown."""
        text = str(value)
        if text not in self._names and not self._also:
            self.fail(f"unknown {self._kind} '{text}': {closest(text, self._names)}", param, ctx)
        return text

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return what could have been given."""
        return f"Known: {', '.join(self._names)}{self._also}"


def natural(text: str | int, least: int = 0) -> int:
    """Parse a whole number of at least `least`."""
    digits = str(text)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18 or int(digits) < least:
        raise click.BadParameter(f"expected a whole number of at least {least}, got '{digits:.40}'")
    return int(digits)


def positive(text: str | int) -> int:
    """Parse a whole number of at least 1."""
    return natural(text, least=1)


def positive_number(text: str | float) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise click.BadParameter(f"expected a finite number above 0, got '{text!s:.40}'")
    return value


def by_name(option: str, given: tuple[str, ...], parse: Callable[[str], Parsed]) -> Parsed | dict[str, Parsed]:
    """Read [NAME=]NUMBER: one number for all, or numbers by name; nothing as an empty dictionary.

    Args:
        option: for messages.
        given: its values.
        parse: reads a number.

    Raises:
        InputError: neither of the two.
    """
    if len(given) == 1 and "=" not in given[0]:
        return parse(given[0])
    numbers: dict[str, Parsed] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals or name in numbers:
            raise InputError(f"{option} {text:.60}: expected one number for all, or NAME=NUMBER once for each")
        numbers[name] = parse(number)
    return numbers


def folder(text: str | Path) -> Path:
    """Take the path of a folder; an empty one, e.g. of a variable that is not set, would be the current folder."""
    if text == "":
        raise click.BadParameter("expected the path of a folder, got ''; '.' is the current one")
    return Path(text)


# --- options of several commands --------------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")
preset_option = click.option(
    "--topology", "preset", default="cpu", type=OneOf("topology", PRESETS),
    help=f"Kind of device, memory and links: {', '.join(PRESETS)}.",
)  # fmt: skip
memory_option = click.option(
    "--memory-gib", type=positive_number, metavar="X", help="Memory per device (default: the topology's)."
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says where the parts of a command's work are done; `make_engine` takes all three."""
    for option in (
        click.option(
            "--address", metavar="HOST:PORT", help="Head of the Ray cluster (default: this machine's, or RAY_ADDRESS)."
        ),
        click.option(
            "--workers", type=positive, metavar="N",
            help="Of the engine (default: one per core; one per machine where they measure).",
        ),
        click.option(
            "--engine", default="here", type=OneOf("engine", ENGINES),
            help="here, in this process; loky, in several of this machine; ray, on a cluster.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


# --- tasks that commands make -----------------------------------------------------------------------------------------


def make_topology(preset: str, devices: int, memory_gib: float | None) -> Topology:
    """Return the topology of what `preset_option` and `memory_option` take, with so many devices."""
    # What no device has is left for the topology to refuse.
    memory_bytes = None if memory_gib is None else max(1, int(min(memory_gib, 2.0**40) * GIB))
    return Topology.preset(preset, devices, memory_bytes)


def check_room(task: ShardingTask, *others: str) -> None:
    """Raise `InputError` where the devices of a task are too small for its tables; it names other remedies, too."""
    if task.total_bytes > task.total_capacity_bytes:
        raise InputError(
            f"the tables take {exact_bytes(task.total_bytes)} with optimiser state, {task.num_devices} devices hold "
            f"{exact_bytes(task.total_capacity_bytes)}: no plan can fit; "
            f"give {', or '.join(('more devices or memory', *others))}"
        )


def print_task(path: Path, task: ShardingTask) -> None:
    """Say what a task that was written holds."""
    used = 100 * task.total_bytes / task.total_capacity_bytes
    devices = count(task.num_devices, "device")
    print(f"{path}: {count(task.num_tables, 'table')}, {used:.1f} % of the memory of {devices}")
    print(f"digest, the task_hash of its plans: {task.digest}")


# --- names with settings ----------------------------------------------------------------------------------------------


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Read NAME,KEY=VALUE,... such as "simulator,weights=model,role=judge".

    The name is registered or `module:Class`, the rest are keyword arguments for it. A value is JSON (a number, true,
    null, a quoted string) where it can be read as such, else a string.

    Raises:
        InputError: the name is missing or a file's, or a setting is not KEY=VALUE, is given twice or is called "name".
    """
    name, *assignments = text.split(",")
    if not name:
        raise InputError(f"'{text:.80}': expected {NOTATION}, the name is missing")
    module, colon, attribute = name.partition(":")
    if colon and module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise InputError(f"'{text:.80}': expected module:Class, not a file: drop '.py' and give {dotted}:{attribute}")
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"'{text:.80}': expected {NOTATION}, got '{assignment:.40}' for a setting")
        if key == "name":
            raise InputError(f"'{text:.80}': no setting can be called 'name', the name comes first")
        if key in settings:
            raise InputError(f"'{text:.80}': setting '{key}' is given twice")
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return name, settings


def open_cost(text: str) -> CostModel:
    """Make the cost model that `--cost` names.

    Raises:
        InputError: no such cost, or one that does not take these settings.
    """
    name, settings = parse_spec(text)
    return make_cost(name, **settings)


def open_solver(text: str) -> Solver:
    """Make the solver that `--solver` names.

    Raises:
        InputError: no such solver, or one that does not take these settings.
    """
    name, settings = parse_spec(text)
    return make_solver(name, **settings)


def read_task(text: str) -> ShardingTask:
    """Read a task from a file, or from a suite by SUITE/INDEX.

    Raises:
        InputError: neither a file nor a task of a suite, or the file is damaged.
    """
    match = re.fullmatch(r"([^/]+)/([0-9]{1,9})", text)
    # A suite without an index, or with one that is no number, is no file either: the message is about suites.
    names_suite = match is not None or (re.fullmatch(r"[^/]+(/[\w-]*)?", text) and text.split("/")[0] in suite_names())
    if Path(text).exists() or not names_suite:
        return ShardingTask.load(text)
    suite = load_suite(text.split("/")[0])
    if match is None:
        expected = f"{suite.name}/INDEX with INDEX from 0 to {len(suite) - 1}"
        raise InputError(f"'{text:.80}' names no task: expected a task file, or {expected}")
    index = int(match[2])
    if index >= len(suite):
        raise InputError(f"suite '{suite.name}' has tasks 0 to {len(suite) - 1}, not {index}")
    return suite[index]


def print_json(data: Any) -> None:
    """Print data as one JSON document."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def answer(as_json: bool, data: Any, text: str) -> None:
    """Print what a command found: data as JSON, or text."""
    if as_json:
        print_json(data)
    else:
        print(text)


def say(text: str) -> None:
    """Print a remark on standard error, out of the way of the result."""
    print(text, file=sys.stderr)


def count(number: int, thing: str) -> str:
    """Return "1 table", "2 tables"."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def terminal_width() -> int:
    """Return the columns of the terminal; 100 when there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def print_notes(costs: Iterable[tuple[str, PlanCost]]) -> None:
    """Print one line per distinct note of some costs.

    Args:
        costs: what each cost is called, and the cost. A note that only some of the feasible ones have names these.
    """
    costs = list(costs)
    for note in dict.fromkeys(note for _, cost in costs for note in cost.notes):
        is_general = all(note in cost.notes for _, cost in costs if cost.feasible)
        names = ", ".join(name for name, cost in costs if note in cost.notes)
        print(f"note: {note}" if is_general else f"note: {note} ({names})")


def check_free(path: Path, force: bool) -> None:
    """Refuse a path that would be overwritten, before time is spent on what goes there.

    Raises:
        InputError: the file exists and `force` is not set, or its folder does not exist.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"cannot write {path}: expected a file in a folder that exists")
    if path.exists() and not force:
        raise InputError(f"{path} exists: give another name, or --force to overwrite it")
