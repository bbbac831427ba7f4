"""What commands have in common: options, how tasks, costs, solvers and plans are given, and what is printed."""

import contextlib
import csv
import functools
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.gpu.cards import CARDS
from shardgym.costs.plan_cost import PlanCost
from shardgym.engines import ENGINES, make_engine
from shardgym.errors import InputError, short_repr
from shardgym.evaluation.solver import Solver, make_solver
from shardgym.files import read_text, write_whole
from shardgym.plans.migration import rebound
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.progress import log_to_stderr
from shardgym.records import parse_json
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask, exact_bytes
from shardgym.tasks.topology import GIB, PRESETS, Topology

#: What works for a command.
Work = Callable[..., int]

#: End of the help of commands that read tasks and plans.
TASK_AND_PLAN = (
    "TASK is a task file, or SUITE/INDEX such as quick-v2/0. PLAN is a plan file, or one device for every table: "
    '{"TABLE": DEVICE, ...} in .json, columns table,devices in .csv, several devices separated by blanks.'
)

#: How costs and solvers with settings are written, for help texts.
NOTATION = "NAME[,KEY=VALUE...]"

ABOVE_0 = click.FloatRange(min=0, min_open=True)


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
        @click.option("--memory-gib", type=ABOVE_0, help="Memory per device (default: the topology's).")
        @functools.wraps(command)
        def with_topology(*, devices: int | None, preset: str, memory_gib: float | None, **arguments: Any) -> int:
            # The topology refuses sizes that no device has.
            memory = None if memory_gib is None else max(1, int(min(memory_gib, 2.0**40) * GIB))
            if memory is None and arguments.get("reserve") == "torchrec" and PRESETS[preset]["device"] in CARDS:
                memory = CARDS[PRESETS[preset]["device"]].memory_bytes  # of which presets leave a quarter out
            topology = None if devices is None else Topology.preset(preset, devices, memory)
            return command(topology=topology, **arguments)

        return with_topology

    return add


def write_task(path: Path, task: ShardingTask, *remedies: str) -> str:
    """Write a task and return a summary; raises `InputError` with remedies if its tables exceed all memory."""
    if task.total_bytes > task.total_capacity_bytes:
        raise InputError(
            f"the tables take {exact_bytes(task.total_bytes)} with optimiser state, but {task.num_devices} devices "
            f"have {exact_bytes(task.total_capacity_bytes)}: no plan can fit; "
            f"give {', or '.join(('--devices, --memory-gib or another --topology', *remedies))}"
        )
    write_whole(path, task.to_json(indent=2) + "\n")
    used = 100 * task.total_bytes / task.total_capacity_bytes
    left = "" if task.step_memory is None else "what the reserve and a step's inputs and outputs leave of "
    held = f"{count(task.num_tables, 'table')}, {used:.1f} % of {left}the memory of {count(task.num_devices, 'device')}"
    return f"{path}: {held}\ndigest, the task_hash of its plans: {task.digest}"


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


def read_task(text: str) -> ShardingTask:
    """Read a task from a file, or from a suite by SUITE/INDEX."""
    match = re.fullmatch(r"([^/]+)/([0-9]{1,9})", text)
    if match is None or Path(text).exists():
        return ShardingTask.load(text)
    suite, index = load_suite(match[1]), int(match[2])
    if index >= len(suite):
        raise InputError(f"suite '{suite.name}' has tasks 0 to {len(suite) - 1}, not {index}")
    return suite[index]


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
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) if as_json else text)


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


_BOUNDS = ("first_row", "end_row", "first_column", "end_column")
_CSV_COLUMNS = ("table", "devices", *_BOUNDS, "bytes")
_PLAN_FIELDS = ("task_hash", "shards", "group_size", "schema")

#: What files are, by their schema, and what to do with one that stands in the place of another.
_FILES = {
    "shardgym.plan": ("a plan of ShardGym", "'shardgym plan show' reads it"),
    "shardgym.task": ("a task", "give it as TASK"),
    "shardgym.torchrec_plan": ("a plan of TorchRec", "convert it with 'shardgym plan import'"),
}


def read_file_of(path: str, schema: str) -> Any:
    """Read JSON; raises `InputError` with a remedy if it says that it is another of `_FILES` than that of `schema`."""
    data = parse_json(read_text(path), path)
    found = str(data.get("schema")).partition("/")[0] if isinstance(data, dict) else schema
    if found != schema and found in _FILES:
        what, remedy = _FILES[found]
        raise InputError(f"{path}: expected {_FILES[schema][0]}, got {what}: {remedy}")
    return data


def read_plan(path: str, task: ShardingTask, *, same_tables: bool = False) -> ShardingPlan:
    """Read a plan for `task`, feasible or not: its own JSON, `{"TABLE": DEVICE}`, or the CSV of `plan_to_csv`.

    In CSV, whole tables need no bounds, and `bytes` is not read. With `same_tables`, a plan for another task with the
    same tables, for example with other statistics, becomes one for `task`.
    """
    if Path(path).suffix.lower() == ".csv":
        return _complete_plan(path, task, _shards_from_csv(path, read_text(path), task))
    data = read_file_of(path, "shardgym.plan")
    # In an object of one device per table, a table may have the name of a plan's field.
    if isinstance(data, dict) and any(not isinstance(data[f], int) for f in _PLAN_FIELDS if f in data):
        plan = ShardingPlan.from_dict(data, path)
        if plan.task_hash != task.digest and not same_tables:
            raise InputError(
                f"{path}: the plan is for task {plan.task_hash[:12]}, not for {task.digest[:12]}: "
                "give the task that it was made for"
            )
        return rebound(plan, task) if same_tables else plan
    if not isinstance(data, dict) or not data:
        raise InputError(f'{path}: expected a plan, or {{"TABLE": DEVICE, ...}}, got {short_repr(data)}')
    return _complete_plan(path, task, [_shard(path, task, name, [device]) for name, device in data.items()])


def plan_to_csv(task: ShardingTask, plan: ShardingPlan) -> str:
    """Return a line per shard under a header; bytes hold optimiser state, too. Rows and columns are half-open."""
    if plan.group_size is not None or plan.leaves_devices:
        raise InputError("CSV cannot hold groups of devices or rows in host memory: use JSON")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for shard in plan.shards:
        devices = " ".join(map(str, shard.devices))
        writer.writerow((shard.table, devices, *shard.rows, *shard.columns, shard.bytes(task)))
    return text.getvalue()


def _complete_plan(path: str, task: ShardingTask, shards: list[Shard]) -> ShardingPlan:
    """Make a plan of shards; raises `InputError` if they leave out a table."""
    missing = {table.name for table in task.tables} - {shard.table for shard in shards}
    if missing:
        raise InputError(f"{path}: table '{min(missing):.60}' has no device ({len(missing)} of the task are missing)")
    return ShardingPlan.of(task, shards)


def _shards_from_csv(path: str, text: str, task: ShardingTask) -> list[Shard]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    shards: list[Shard] = []
    try:
        header = list(reader.fieldnames or ())
        if not {"table", "devices"} <= set(header) <= set(_CSV_COLUMNS) or len(set(header)) < len(header):
            known = ",".join(_CSV_COLUMNS)
            raise InputError(f"{path}: expected the columns table,devices or {known}, got {','.join(header):.80}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{where}: expected {len(header)} cells ({','.join(header)})")
            try:
                bounds = [int(row[column]) for column in _BOUNDS if row.get(column)]
                devices = [int(device) for device in row["devices"].split()]
            except ValueError as error:
                raise InputError(f"{where}: expected integers for devices, rows and columns: {error}") from None
            if len(bounds) not in (0, len(_BOUNDS)):
                raise InputError(f"{where}: expected all of {','.join(_BOUNDS)}, or none for a whole table")
            shards.append(_shard(where, task, row["table"], devices, bounds))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    return shards


def _shard(where: str, task: ShardingTask, name: str, devices: Sequence[int], bounds: Sequence[int] = ()) -> Shard:
    """Make a shard of a table of the task; of the whole table without bounds."""
    if not task.has_table(name):
        whole = [table.name for table in task.tables if table.name.endswith(f".{name}")]
        remedy = f"did you mean '{whole[0]}'?" if whole else "expected a device for each of its tables"
        raise InputError(f"{where}: '{name:.60}' is not a table of the task: {remedy}")
    table = task.table(name)
    first_row, end_row, first_column, end_column = bounds or (0, table.num_embeddings, 0, table.embedding_dim)
    try:
        return Shard(name, (first_row, end_row), (first_column, end_column), tuple(devices))
    except InputError as error:
        raise InputError(f"{where}, table '{name:.60}': {error}") from None
