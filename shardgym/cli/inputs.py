"""What commands read: tasks, plans and cost models, as they are named on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardgym.cli.named import parse_named
from shardgym.cli.parser import Parser
from shardgym.cli.plan_files import PLAN_HELP as PLAN_HELP
from shardgym.cli.plan_files import read_plan as read_plan
from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import InputError
from shardgym.solver import Solver, make_solver
from shardgym.task import ShardingTask

#: The cost that commands use which need one that runs everywhere.
DEFAULT_ORACLE = "roofline"

#: The cost that measures.
MEASURED = "fbgemm"

TASK_HELP = "a task file, or SUITE/INDEX such as quick-v1/0"


def read_task(text: str) -> ShardingTask:
    """Read a task from a file, or from a suite by SUITE/INDEX.

    Raises:
        InputError: neither a file nor a task of a suite, or the file is damaged.
    """
    match = re.fullmatch(r"([^/]+)/([0-9]{1,9})", text)
    if Path(text).exists() or (match is None and not _names_suite(text)):
        return ShardingTask.load(text)
    from shardgym.suites import load_suite

    suite = load_suite(text.partition("/")[0])
    if match is None:
        expected = f"{suite.name}/INDEX with INDEX from 0 to {len(suite) - 1}"
        raise InputError(f"'{text:.80}' names no task: expected a task file, or {expected}")
    if int(match[2]) >= len(suite):
        raise InputError(f"suite '{suite.name}' has tasks 0 to {len(suite) - 1}, not {match[2]}")
    return suite[int(match[2])]


def _names_suite(text: str) -> bool:
    """Say whether this is a suite with no index, or one that is no number."""
    from shardgym.suites import suite_names

    match = re.fullmatch(r"([^/]+)(/[\w-]*)?", text)
    return match is not None and match[1] in suite_names()


def add_device(parser: Parser) -> None:
    """Add `--device`, the setting of measured costs."""
    from shardgym.cli.parser import one_of

    parser.add_argument("--device", type=one_of("device", ["cpu", "cuda"]), help="measure on cpu or cuda")


def device_settings(device: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `--device` stands for, besides those given with the cost's name.

    Raises:
        InputError: the device is given there, too.
    """
    if device is not None and "device" in given:
        raise InputError(f"--device {device} and setting device={given['device']} were given: leave one out")
    return {} if device is None else {"device": device}


def open_cost(text: str, device: str | None = None) -> CostModel:
    """Make the cost model that `--cost` and `--device` name.

    Raises:
        InputError: no such cost, or one that does not take these settings; or the device is given twice.
    """
    name, settings = parse_named(text)
    return make_cost(name, **device_settings(device, settings), **settings)


def open_solver(text: str) -> Solver:
    """Make the solver that `--solver` names.

    Raises:
        InputError: no such solver, or one that does not take these settings.
    """
    name, settings = parse_named(text)
    return make_solver(name, **settings)
