"""What commands have in common: options, how costs and solvers are given, and what is printed."""

import contextlib
import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.engines import ENGINES, make_engine
from shardgym.errors import InputError
from shardgym.evaluation.solver import Solver, make_solver
from shardgym.progress import log_to_stderr
from shardgym.tasks.topology import GIB, PRESETS, Topology

#: What works for a command.
Work = Callable[..., int]

#: How costs and solvers with settings are written, for help texts.
NOTATION = "NAME[,KEY=VALUE...]"

ABOVE_0 = click.FloatRange(min=0, min_open=True)
#: No device has a pebibyte: bytes were meant.
GIB_OF_A_DEVICE = click.FloatRange(min=0, min_open=True, max=2**20)


def by_name(of: click.ParamType) -> Callable[..., Any]:  # type: ignore[type-arg]  # not generic in older versions
    """Return a callback that reads [NAME=]VALUE, repeated, as values by name; that for all is under ""."""

    def read(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
        pairs = [text.rpartition("=") for text in given]
        found = {name: of.convert(value, param, ctx) for name, _, value in pairs}
        if len(found) < len(given):
            raise click.BadParameter("expected one value for all, and NAME=VALUE once for each exception", ctx, param)
        return found

    return read


def for_names(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return what `by_name` read, with the value for all, if there is one, for each of `names` that has none."""
    values = dict.fromkeys(names, given[""]) if "" in given else {}
    return values | {name: value for name, value in given.items() if name}


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def writes(what: str) -> Callable[[Work], Work]:
    """Add --output and --force; without --force, an existing file is refused before the command starts."""

    def add(command: Work) -> Work:
        @click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help=f"Write the {what} here.")
        @click.option("--force", is_flag=True, help="Overwrite an existing file.")
        @functools.wraps(command)
        def checked(*, output: Path, force: bool, **arguments: Any) -> int:
            if output.is_dir() or not output.parent.is_dir():
                raise InputError(f"cannot write {output}: expected a file in a folder that exists")
            if output.exists() and not force:
                raise InputError(f"{output} exists: give another name, or --force to overwrite it")
            return command(output=output, **arguments)

        return checked

    return add


def takes_engine(command: Work) -> Work:
    """Add --engine, --workers and --address; the command receives the engine."""

    @click.option("--engine", "name", default="here", type=click.Choice(ENGINES), help="Where to run the work.")
    @click.option("--workers", type=click.IntRange(1), help="Workers (default: one per core or machine).")
    @click.option("--address", metavar="HOST:PORT", help="The Ray cluster (default: here, or RAY_ADDRESS).")
    @functools.wraps(command)
    def with_engine(*, name: str, workers: int | None, address: str | None, **arguments: Any) -> int:
        return command(engine=make_engine(name, workers=workers, address=address), **arguments)

    return with_engine


def takes_topology(*, required: bool) -> Callable[[Work], Work]:
    """Add --devices, --topology and --memory-gib; the command receives the topology, None without devices."""

    def add(command: Work) -> Work:
        @click.option("--devices", required=required, type=click.IntRange(1), metavar="N", help="Number of devices.")
        @click.option(
            "--topology", "preset", default="cpu", type=click.Choice([*PRESETS]),
            help="Devices and links (default: cpu, 128 MiB a device).",
        )  # fmt: skip
        @click.option("--memory-gib", type=GIB_OF_A_DEVICE, help="Memory per device (default: the topology's).")
        @functools.wraps(command)
        def with_topology(*, devices: int | None, preset: str, memory_gib: float | None, **arguments: Any) -> int:
            is_given = click.get_current_context().get_parameter_source("preset") is not ParameterSource.DEFAULT
            if devices is None and (is_given or memory_gib is not None):
                raise InputError("--topology and --memory-gib are for a task: give --devices, too")
            memory = None if memory_gib is None else max(1, int(memory_gib * GIB))
            topology = None if devices is None else Topology.preset(preset, devices, memory)
            return command(topology=topology, **arguments)

        return with_topology

    return add


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Read NAME,KEY=VALUE,...: values are JSON where they can be read as such, else strings."""
    name, *assignments = text.split(",")
    if not name:
        raise InputError(f"'{text:.80}': expected {NOTATION}, the name is missing")
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.isidentifier() or key == "name" or key in settings:
            raise InputError(f"'{text:.80}': expected {NOTATION}, every key once, got '{assignment:.40}' for a setting")
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return name, settings


def open_cost(text: str) -> CostModel:
    """Make the cost model that `--cost` or `--oracle` names, with settings."""
    name, settings = parse_spec(text)
    return make_cost(name, **settings)


def open_solver(text: str) -> Solver:
    """Make the solver that `--solver` names, with settings."""
    name, settings = parse_spec(text)
    return make_solver(name, **settings)


@contextlib.contextmanager
def aside(as_json: bool) -> Iterator[None]:
    """Send what solvers print, and log messages, to standard error, apart from the result."""
    with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
        yield


def say(text: str) -> None:
    """Print a remark on standard error, apart from the result."""
    print(text, file=sys.stderr)


def answer(as_json: bool, data: Any, text: str) -> None:
    """Print what a command found: data as JSON, or text."""
    print(json_text(data) if as_json else text)


def json_text(data: Any) -> str:
    """Return data as JSON for machines."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def count(number: int, thing: str) -> str:
    """Return "1 table", "2 tables"."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def width() -> int:
    """Return the columns of the terminal; 100 when there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def notes_of(costs: Iterable[tuple[str, PlanCost]]) -> list[str]:
    """Return a line per distinct note of some costs, with the names of those that have it where others do not."""
    costs = list(costs)
    lines = []
    for note in dict.fromkeys(note for _, cost in costs for note in cost.notes):
        is_general = all(note in cost.notes for _, cost in costs if cost.feasible)
        names = ", ".join(name for name, cost in costs if note in cost.notes)
        lines.append(f"note: {note}" if is_general else f"note: {note} ({names})")
    return lines
