"""Who takes part in a run: a solver, how it is named and the settings that it was made with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardgym.errors import InputError
from shardgym.records import canonical_json
from shardgym.solver import Solver, make_solver


@dataclass(frozen=True)
class SolverSpec:
    """A solver to be made.

    Attributes:
        name: a registered name, or `module:Class`.
        settings: keyword arguments for its class, JSON-ready.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entrant:
    """A solver that takes part in a run, made once."""

    spec: SolverSpec
    solver: Solver


def make_entrants(solvers: Iterable[str | SolverSpec]) -> list[Entrant]:
    """Make every solver before anything is solved, so that a wrong name costs no time.

    Raises:
        UnknownNameError: a solver that does not exist; the closest names are given.
        InputError: no solver, the same name with different settings, or settings that a class does not take.
    """
    specs: dict[str, SolverSpec] = {}
    for given in solvers:
        spec = SolverSpec(given) if isinstance(given, str) else given
        if specs.setdefault(spec.name, spec) != spec:
            raise InputError(f"solver '{spec.name}' is given twice with different settings: run them apart")
    if not specs:
        raise InputError("no solver was given: name at least one")
    for spec in specs.values():
        _require_json(spec)
    return [Entrant(spec, make_solver(spec.name, **spec.settings)) for spec in specs.values()]


def _require_json(spec: SolverSpec) -> None:
    try:
        canonical_json(dict(spec.settings)).encode()
    except (TypeError, ValueError) as error:
        raise InputError(f"settings of solver '{spec.name}' are not JSON, which records need: {error}") from None
