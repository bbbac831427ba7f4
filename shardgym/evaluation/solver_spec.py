"""SolverSpec: which solver takes part in a run, with which settings, under which label."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardgym.arguments import check_dict, check_list, describe
from shardgym.errors import InputError
from shardgym.evaluation.result import recipe
from shardgym.records import canonical_json
from shardgym.registry import find_class
from shardgym.solver import GROUP, Solver, make_solver, solver_names

_LABEL = re.compile(r"[A-Za-z0-9_.+-]{1,60}")


@dataclass(frozen=True)
class SolverSpec:
    """Which solver takes part in a run, with which settings, under which label.

    Attributes:
        name: a registered name, or `module:Class`.
        settings: keyword arguments for its class, JSON-ready.
        label: what it is called in records and tables; empty for its name. With labels, one solver takes part several
            times with different settings.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

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
        return make_solver(self.name, **self.settings)


def check_solvers(solvers: Iterable[str | SolverSpec]) -> list[SolverSpec]:
    """Check which solvers a run was asked for, before any of them is made.

    Modules of registered solvers are imported here. Those of one's own are not: they are imported where they solve.

    Raises:
        UnknownNameError: a solver that does not exist; the closest names are given.
        InputError: no solver, one title for different ones, a bad label, or settings that records cannot hold.
        MissingDependencyError: a registered solver needs an extra that is not installed.
    """
    specs: dict[str, SolverSpec] = {}
    for number, value in enumerate(check_list("solvers", solvers, "names or SolverSpec")):
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
        if ":" not in spec.name:
            find_class("solver", GROUP, spec.name)
    return list(specs.values())


def _check_spec(number: int, value: object) -> SolverSpec:
    """Return one entry of the list of solvers as a spec; a label that equals the name is dropped."""
    spec = SolverSpec(value) if isinstance(value, str) else value
    if not isinstance(spec, SolverSpec):
        raise InputError(
            f"solvers[{number}]: expected a name, 'module:Class' or a SolverSpec, got {describe(value)}; records name "
            "solvers so that they can be made again"
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
