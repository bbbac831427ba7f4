"""Suites: versioned lists of tasks, as data, and suites of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardgym.arguments import check_name
from shardgym.errors import InputError, UnknownNameError
from shardgym.records import parse_json, read_text
from shardgym.suites.suite import Suite
from shardgym.suites.tracks import Track

__all__ = ["Suite", "Track", "load_suite", "suite_names"]

DATA = Path(__file__).with_name("data")
_YAML = (".yaml", ".yml")


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(path.stem for path in DATA.glob("*.yaml"))


def load_suite(name_or_path: str | Path) -> Suite:
    """Load a suite; its tasks are built when they are asked for.

    Args:
        name_or_path: a name from `suite_names()`, or the path of a file of your own: a suite in YAML or JSON, one task
            in JSON, or a JSON list of tasks.

    Raises:
        UnknownNameError: neither a known name nor a path; the closest names are given.
        InputError: the file cannot be read, has an unknown field, or one out of range; or no name or path is given.
    """
    text = check_name("suite", name_or_path)
    if text.endswith((*_YAML, ".json")):
        return _from_file(Path(text))
    if text not in suite_names():
        raise UnknownNameError("suite", text, suite_names())
    return _from_spec(text, DATA / f"{text}.yaml", tuple(read_text(digests_path(text)).split()))


def load_unverified(name: str) -> Suite:
    """Load a suite that comes with the package without comparing its tasks with the published digests.

    Raises:
        UnknownNameError: no such suite; the closest names are given.
    """
    if name not in suite_names():
        raise UnknownNameError("suite", name, suite_names())
    return _from_spec(name, DATA / f"{name}.yaml", None)


def digests_path(name: str) -> Path:
    """Return where the digests of a suite that comes with the package are."""
    return DATA / f"{name}.digests"


def _from_file(path: Path) -> Suite:
    data = _parse(path)
    if isinstance(data, list) or (isinstance(data, dict) and "tables" in data):
        return _of_tasks(path, data if isinstance(data, list) else [data])
    return _from_spec(path.stem, path, None, data)


def _of_tasks(path: Path, tasks: list[Any]) -> Suite:
    from shardgym.suites.sources import ListedSource

    if not tasks:
        raise InputError(f"{path}: an empty list, expected tasks")
    where = [str(path)] if len(tasks) == 1 else [f"{path}, task {i}" for i in range(len(tasks))]
    source = ListedSource(list(zip(where, tasks, strict=True)), path.parent)
    return Suite(path.stem, f"tasks of {path.name}", (Track.between("fbgemm", "roofline"),), source)


def _from_spec(name: str, path: Path, digests: tuple[str, ...] | None, data: Any = None) -> Suite:
    from shardgym.suites.drawn import DrawnSource
    from shardgym.suites.sources import ListedSource, PublishedSource, TaskSource
    from shardgym.suites.spec import DrawnTasks, PublishedTasks, SuiteSpec

    spec = SuiteSpec.from_dict(_parse(path) if data is None else data, str(path))
    source: TaskSource
    if isinstance(spec.tasks, DrawnTasks):
        source = DrawnSource(spec.tasks, path)
    elif isinstance(spec.tasks, PublishedTasks):
        source = PublishedSource(spec.tasks)
    else:
        source = ListedSource.of(spec.tasks, path)
    return Suite(name, spec.description, spec.tracks(), source, digests)


def _parse(path: Path) -> Any:
    from shardgym.suites.yaml_text import parse_yaml

    text = read_text(path)
    return parse_yaml(text, str(path)) if path.suffix in _YAML else parse_json(text, str(path))
