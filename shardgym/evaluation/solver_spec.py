"""Which solver takes part in a run: its name or class, its settings and label, and the files that it is written in.

The digest of these files is in records, so that a solver that has changed is told. They are the file of its class, and
the files of the same top-level package that it imports, itself or through others, wherever the import stands. To a
class in a module outside of packages belong the modules beside it that it imports. What is not read: other packages,
ShardGym among them, whose versions and commit records hold, and data such as weights, which have digests of their own.
Files are found by their text alone: nothing is imported for this, and what else was imported before makes no
difference.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from shardgym.arguments import check_dict, check_list, describe
from shardgym.errors import InputError
from shardgym.evaluation.result import recipe
from shardgym.records import canonical_json, check_settings, short_repr
from shardgym.registry import construct, find_class, registered
from shardgym.solver import GROUP, Solver, make_solver, solver_names

_LABEL = re.compile(r"[A-Za-z0-9_.+-]{1,60}")

#: Start of a digest by the rule above. Digests without a start, of older records, are those of the file of the class.
RULE = "2:"

#: An import statement, whose names may be in parentheses over several lines. The whole text is searched by this, not
#: parsed, which would take longer than making a solver: a sentence that reads like an import may add a file.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n;]+)|import[ \t]+([^\n;]+))", re.MULTILINE
)


@dataclass(frozen=True)
class SolverSpec:
    """Which solver takes part in a run, with which settings, under which label.

    Attributes:
        name: a registered name, or `module:Class`.
        settings: keyword arguments for its class, JSON-ready.
        label: what it is called in records and tables; empty for its name. With labels, one solver takes part several
            times with different settings.
        given: the class or the solver that the name stands for; None when it is looked up by the name.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    given: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, solver: Any) -> SolverSpec:
        """Describe a class, or a solver that was made, so that records name what makes it again."""
        made_by = solver if isinstance(solver, type) else type(solver)
        target = f"{made_by.__module__}:{made_by.__name__}"
        name = next((name for name, cls_ in registered(GROUP).items() if cls_ == target), target)
        settings = {} if solver is made_by else resolved_settings(made_by, {}, made=solver)
        return cls(name, settings, given=solver)

    @property
    def title(self) -> str:
        """What it is called in records and tables."""
        return self.label or self.name

    @property
    def made_from(self) -> str | None:
        """The name that the title stands for; None when it is the title."""
        return self.name if self.title != self.name else None

    @property
    def recipe(self) -> str:
        """Name behind a label, and settings, as text; the same as `Result.recipe`."""
        return recipe(self.made_from, self.settings)

    def make(self) -> Solver:
        """Make the solver; raises what `make_solver` does."""
        if self.given is None:
            return make_solver(self.name, **self.settings)
        if not isinstance(self.given, type):
            return cast("Solver", self.given)
        return cast("Solver", construct("solver", self.name, self.given, dict(self.settings)))


def check_solvers(solvers: Iterable[str | SolverSpec | Solver | type[Solver]]) -> list[SolverSpec]:
    """Check which solvers a run was asked for, before any of them is made.

    Modules of registered solvers are imported here. Those of one's own are not: they are imported where they solve.

    Raises:
        UnknownNameError: a solver that does not exist; the closest names are given.
        InputError: no solver, one title for different ones, a bad label, or settings that records cannot hold.
        MissingDependencyError: a registered solver needs an extra that is not installed.
    """
    specs: dict[str, SolverSpec] = {}
    for number, value in enumerate(check_list("solvers", solvers, "names, classes or SolverSpec")):
        spec = _check_spec(number, value)
        if specs.setdefault(spec.title, spec) != spec:
            raise InputError(
                f"solver '{spec.title}' is given twice with different settings: label one, e.g. mine={spec.name},..."
            )
    if not specs:
        raise InputError("no solver was given: name at least one")
    for spec in specs.values():
        try:
            canonical_json(dict(spec.settings)).encode()
        except (TypeError, ValueError) as error:
            raise InputError(f"settings of solver '{spec.title}' are not JSON, which records need: {error}") from None
        try:
            check_settings(dict(spec.settings))
        except ValueError as error:
            raise InputError(f"settings of solver '{spec.title}': {error}") from None
        if ":" not in spec.name and spec.given is None:
            find_class("solver", GROUP, spec.name)
    return list(specs.values())


def _check_spec(number: int, value: Any) -> SolverSpec:
    """Return one entry of the list of solvers as a spec; a label that equals the name is dropped."""
    if isinstance(value, SolverSpec):
        spec = value
    elif isinstance(value, str):
        spec = SolverSpec(value)
    elif callable(getattr(value, "solve", None)):
        spec = SolverSpec.of(value)
    else:
        raise InputError(
            f"solvers[{number}]: expected a name, 'module:Class', a SolverSpec, or what has a method solve, got "
            f"{describe(value)}"
        )
    spec = dataclasses.replace(spec, settings=check_dict(f"settings of solver '{spec.name}'", spec.settings))
    if spec.made_from is None:
        return dataclasses.replace(spec, label="")
    check_label(spec.label, spec.name)
    return spec


def check_label(label: str, name: str) -> None:
    """Refuse a label that tables cannot show plainly, or that is the name of another solver; raises `InputError`."""
    if not _LABEL.fullmatch(label):
        raise InputError(f"label '{label:.80}': expected at most 60 letters, digits and any of _ . + -")
    if label in solver_names():
        raise InputError(f"label '{label}' is the name of another solver than '{name}': give another one")


def resolved_settings(cls: type[Any], settings: Mapping[str, Any], made: object = None) -> dict[str, Any]:
    """Return all arguments that a class is called with, those with defaults too, JSON-ready.

    Args:
        cls: the class.
        settings: the arguments that are given.
        made: an object of the class, whose attributes of the same names are taken for the arguments it was made with.
    """
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):  # some classes written in C do not say what they take
        parameters = ()  # type: ignore[assignment]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    defaults = {p.name: None if p.default is p.empty else p.default for p in named}
    stored = {name: vars(made)[name] for name in defaults if name in getattr(made, "__dict__", {})}
    return {name: _recordable(value) for name, value in {**defaults, **stored, **settings}.items()}


def _recordable(value: Any) -> Any:
    """Return a value that a record can hold as it is, and the beginning of another one's `repr`."""
    try:
        canonical_json(value).encode()
        check_settings({"": value})
    except (TypeError, ValueError, RecursionError):
        return short_repr(value)
    return value


def source_digest(cls: type[Any]) -> str:
    """Return the digest of all files that a class is written in, `RULE` first; "" where there is none."""
    files = source_files(cls)
    lines = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for name, path in sorted(files.items())]
    return RULE + hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def file_digest(cls: type[Any]) -> str:
    """Return the SHA-256 of the file that a class is defined in; "" where there is none, e.g. in a notebook."""
    try:
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""


def source_files(cls: type[Any]) -> dict[str, Path]:
    """Return the files that a class is written in by the names of their modules; none e.g. for one of a notebook."""
    try:
        path = Path(inspect.getfile(cls)).resolve()
        path.read_bytes()
    except (OSError, TypeError):
        return {}
    name = cls.__module__
    parts = name.split(".")
    place = path.parent if path.name == "__init__.py" else path.with_suffix("")
    if list(place.parts[-len(parts) :]) != parts:  # a script
        return {path.stem: path}
    root = Path(*place.parts[: -len(parts)])
    top = parts[0]
    in_package = (root / top).is_dir() and (root / top) in path.parents
    if not in_package and str(root) in {str(Path(folder).resolve()) for folder in sysconfig.get_paths().values()}:
        return {name: path}  # a module that is installed by itself: those beside it are of others
    files: dict[str, Path] = {}
    open_names = [name]
    while open_names:
        module = open_names.pop()
        first = module.partition(".")[0]
        is_own = first == top if in_package else first != "shardgym"
        found = _file_of(root, module) if is_own and module not in files else None
        if found is None:
            continue
        files[module] = found
        is_init = found.name == "__init__.py"
        for imported in _imports(found.read_text(encoding="utf-8", errors="replace"), module, is_init):
            steps = imported.split(".")
            open_names += [".".join(steps[:length]) for length in range(1, len(steps) + 1)]
    return files


def _file_of(root: Path, module: str) -> Path | None:
    """Return the file of a module below a folder; None where there is none."""
    place = root.joinpath(*module.split("."))
    for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if path.is_file():
            return path
    return None


def _imports(text: str, module: str, is_init: bool) -> Iterator[str]:
    """Yield the full names that a module's text imports; of `from a import b` both `a` and `a.b`, a module or not."""
    for start, names, modules in _IMPORT.findall(re.sub("#[^\n]*", "", text)):
        if modules:
            yield from (name for name in re.findall(r"([\w.]+)(?:\s+as\s+\w+)?", modules) if name.strip("."))
            continue
        level = len(start) - len(start.lstrip("."))
        parts = module.split(".")
        above = parts[: len(parts) + is_init - level] if level else []
        base = ".".join([*above, *filter(None, start[level:].split("."))])
        if base:
            yield base
            yield from (f"{base}.{name}" for name in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names))
