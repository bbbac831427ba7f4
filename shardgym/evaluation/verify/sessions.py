"""Records of one task that were not measured together, which no run leaves behind unless a plan failed later."""

from __future__ import annotations

from collections.abc import Iterable

from shardgym.evaluation.verify.spans import spans
from shardgym.evaluation.verify.stored import Stored


def mixed_sessions(rows: Iterable[object]) -> list[str]:
    """Return a line per file that names the tasks whose times are of several sessions; a run measures them together."""
    sessions: dict[str, dict[int, set[str]]] = {}
    for stored in (row for row in rows if isinstance(row, Stored)):
        result = stored.result
        if result.status == "ok" and result.cost is not None and result.cost.session:
            sessions.setdefault(str(stored.path), {}).setdefault(result.task_index, set()).add(result.cost.session)
    lines = []
    for file, tasks in sessions.items():
        mixed = sorted(index for index, found in tasks.items() if len(found) > 1)
        if mixed:
            where = f"{'tasks' if len(mixed) > 1 else 'task'} {spans(mixed)} of {file}"
            lines.append(f"times of several sessions on {where}: a run measures all plans of a task together")
    return lines
