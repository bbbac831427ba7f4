"""Naming the failures that could not be checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.spans import spans


def failure_lines(rows: Iterable[Checked]) -> list[str]:
    """Return a line per file with the tasks of every solver's unchecked failures."""
    tasks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.status == "failure" and row.task_index is not None:
            tasks[row.file][row.solver].append(row.task_index)
    return [f"failures, not checked, in {file}: {_named(solvers)}" for file, solvers in tasks.items()]


def _named(solvers: Mapping[str, Iterable[int]]) -> str:
    return "; ".join(f"{name} on tasks {spans(indices)}" for name, indices in solvers.items())
