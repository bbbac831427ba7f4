"""Which solver takes part in a run: its name or class, its settings and label, and the file that it is written in.

Records hold the digest of that file, so a changed solver is noticed. The commit and versions in records cover what the
file imports, and weights have a digest of their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from shardgym.errors import InputError, short_repr
from shardgym.evaluation.result import recipe
from shardgym.evaluation.solver import GROUP, Solver, make_solver, solver_names
from shardgym.records import Record, canonical_json
from shardgym.registry import construct, find_class, registered

_LABEL = re.compile(r"[A-Za-z0-9_.+-]{1,60}")


@dataclass(frozen=True)
class SolverSpec:
    """Which solver takes part in a run, with which settings, under which label."""

    name: str  #: a registered name, or `module:Class`
    settings: Mapping[str, Any] = field(default_factory=dict)  #: keyword arguments for its class, JSON-ready
    #: What it is called in records and tables; empty for its name. With labels, one solver takes part several times
    #: with different settings.
    label: str = ""
    #: The class or the solver that the name stands for; None when it is looked up by the name.
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
        InputError: no list, no solver, one title for different ones, a bad label, or settings that records cannot hold.
        MissingDependencyError: a registered solver needs an extra that is not installed.
    """
    if isinstance(solvers, str | type | SolverSpec) or hasattr(solvers, "solve"):
        raise InputError(f"solvers: expected a list, got {short_repr(solvers)}: write [{short_repr(solvers)}]")
    specs: dict[str, SolverSpec] = {}
    for number, value in enumerate(list(solvers)):
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
        if ":" not in spec.name and spec.given is None:
            find_class("solver", GROUP, spec.name)
    return list(specs.values())


def _check_spec(number: int, value: Any) -> SolverSpec:
    """Return one entry of the list of solvers as a spec; a label that equals the name is dropped."""
    if isinstance(value, SolverSpec):
        if not isinstance(value.name, str):
            raise InputError(f"SolverSpec: expected a name or 'module:Class', got {short_repr(value.name)}")
        spec = value
    elif isinstance(value, str):
        spec = SolverSpec(value)
    elif callable(getattr(value, "solve", None)):
        spec = SolverSpec.of(value)
    else:
        raise InputError(
            f"solvers[{number}]: expected a name, 'module:Class', a SolverSpec, or an object with a method solve, got "
            f"{short_repr(value)}"
        )
    spec = dataclasses.replace(spec, settings=dict(spec.settings or {}))
    if spec.made_from is None:
        return dataclasses.replace(spec, label="")
    if not _LABEL.fullmatch(spec.label):
        raise InputError(f"label '{spec.label:.80}': expected at most 60 letters, digits and any of _ . + -")
    if spec.label in solver_names():
        raise InputError(f"label '{spec.label}' of '{spec.name}' is the name of another solver: give another label")
    return spec


def resolved_settings(cls: type[Any], settings: Mapping[str, Any], made: object = None) -> dict[str, Any]:
    """Return all arguments that a class is called with, those with defaults too, JSON-ready.

    Args:
        cls: the class.
        settings: the arguments that are given.
        made: an object of the class, which has the arguments that it was made with as attributes of the same names,
            or as those of its `settings`.

    Raises:
        InputError: the object lacks one of them, so that records could not say how to make it again.
    """
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):  # some classes written in C do not say what they take
        parameters = ()  # type: ignore[assignment]
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    resolved = {p.name: None if p.default is p.empty else p.default for p in named}
    if made is not None:
        resolved = {name: _argument(made, name) for name in resolved}
        for keywords in (p.name for p in parameters if p.kind is p.VAR_KEYWORD):
            others = _argument(made, keywords)
            resolved |= others.identity() if isinstance(others, Record) else others
    return {name: _recordable(value) for name, value in {**resolved, **settings}.items()}


def _argument(made: object, name: str) -> Any:
    holder = made if hasattr(made, name) else getattr(made, "settings", None)
    if not hasattr(holder, name):
        raise InputError(
            f"solver {type(made).__name__} has no attribute '{name}', so records cannot say what it was made with: "
            f"keep the argument as self.{name}, or give the class or its name with settings"
        )
    return getattr(holder, name)


def _recordable(value: Any) -> Any:
    """Return a value that a record can hold as it is, and the beginning of another one's `repr`."""
    try:
        canonical_json(value).encode()
    except (TypeError, ValueError, RecursionError):
        return short_repr(value)
    return value


def source_digest(cls: type[Any]) -> str:
    """Return the SHA-256 of the file that a class is defined in; "" where there is none, e.g. in a notebook."""
    try:
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""
