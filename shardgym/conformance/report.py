"""ConformanceReport: which promises a solver keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

_WORDS = {True: "ok", False: "FAILED", None: "not run"}


@dataclass(frozen=True)
class Check:
    """One promise.

    Attributes:
        name: what was checked.
        ok: whether it held; None when it could not be told.
        detail: what was looked at, or the first thing that went wrong.
    """

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one solver.

    Attributes:
        solver: name of the solver.
        cost: name of the cost model it could query.
        rows: the checks, in the order they are documented in `shardgym.conformance.checks`.
    """

    solver: str
    cost: str
    rows: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check was run and held."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready lists and dictionaries."""
        return {"solver": self.solver, "cost": self.cost, "ok": self.ok, "checks": [asdict(row) for row in self.rows]}

    def table(self) -> str:
        """Return the report as a plain-text table, one line per check."""
        rows = [(row.name, _WORDS[row.ok], row.detail) for row in self.rows]
        return tabulate(rows, headers=("check", "result", "detail"), disable_numparse=True)
