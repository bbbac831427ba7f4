"""The judges, or oracles, that records name, made once each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from shardgym.costs.base import CostModel, make_cost
from shardgym.errors import InputError, MissingDependencyError
from shardgym.records import canonical_json


class Judges:
    """Makes judges by name and settings, and closes them all at the end.

    Args:
        trust: names of the form `module:Class` that may be imported; registered names always may.
        role: "judge" or "oracle", for messages.
    """

    def __init__(self, trust: Collection[str] = (), role: str = "judge") -> None:
        self._role = role
        self._trust = frozenset(trust)
        self._made: dict[str, tuple[CostModel | None, str]] = {}
        self._open = ExitStack()

    def get(self, name: str, settings: Mapping[str, Any]) -> tuple[CostModel | None, str]:
        """Return (judge, ""), or (None, why it cannot be made here)."""
        key = canonical_json([name, dict(settings)])
        if key not in self._made:
            self._made[key] = self._make(name, settings)
        return self._made[key]

    def _make(self, name: str, settings: Mapping[str, Any]) -> tuple[CostModel | None, str]:
        if ":" in name and name not in self._trust:
            return None, f"its {self._role} is '{name}': to import it, pass --trust {name}"
        try:
            return self._open.enter_context(make_cost(name, **settings)), ""
        except (InputError, MissingDependencyError) as error:
            return None, f"its {self._role} cannot be made here: {error}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
