"""Checked: one record and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: `ok`: agrees with a fresh score. `mismatch`: does not, or is not of the run in `run.json`. `skipped`: claims a cost
#: that cannot be scored here. `unreadable`: the line is damaged or its task is not at hand. `failure`: claims no cost
#: and holds nothing that shows whether it failed.
CheckStatus = Literal["ok", "mismatch", "skipped", "unreadable", "failure"]

MARKS: dict[CheckStatus, str] = {"ok": "✅", "mismatch": "❌", "skipped": "⏭", "unreadable": "❌", "failure": "⏭"}


@dataclass(frozen=True)
class Checked:
    """One record and what became of it.

    Attributes:
        where: file and line.
        subject: suite, task, solver and seed; "" when the line is damaged.
        status: see `CheckStatus`.
        reason: why it is not ok; for one that is, the stored and the fresh time.
        solver: name of the solver; "" when the line is damaged.
        task_index: position of the task in its suite; None when the line is damaged.
        claims_cost: whether the record claims a cost, which an "ok" of it then confirms.
        relative: new over stored time of a cost that was measured again, over the drift of its task; None for others.
    """

    where: str
    subject: str
    status: CheckStatus
    reason: str
    solver: str = ""
    task_index: int | None = None
    relative: float | None = None
    claims_cost: bool = False

    @property
    def file(self) -> str:
        """The file that the record is in."""
        return self.where.rpartition(":")[0]

    def line(self, ascii_only: bool = False) -> str:
        """Return the record's line of the printed report."""
        mark = "" if ascii_only else f"{MARKS[self.status]} "
        return f"{mark}{self.status:<10} {self.where}  {self.subject}: {self.reason}"
