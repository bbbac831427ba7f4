"""What a verification found, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: `ok`: agrees with a fresh score. `mismatch`: does not. `skipped`: cannot be scored here, or is a failure that
#: names no plan. `unreadable`: the line is damaged or its task is not at hand.
CheckStatus = Literal["ok", "mismatch", "skipped", "unreadable"]

MARKS: dict[CheckStatus, str] = {"ok": "✅", "mismatch": "❌", "skipped": "⏭", "unreadable": "❌"}


@dataclass(frozen=True)
class Checked:
    """One record and what became of it.

    Attributes:
        where: file and line.
        subject: suite, task, solver and seed; "" when the line is damaged.
        status: see `CheckStatus`.
        reason: why it is not ok; for one that is, the stored and the fresh time.
    """

    where: str
    subject: str
    status: CheckStatus
    reason: str

    def line(self, ascii_only: bool = False) -> str:
        """Return the record's line of the printed report."""
        mark = "" if ascii_only else f"{MARKS[self.status]} "
        return f"{mark}{self.status:<10} {self.where}  {self.subject}: {self.reason}"


@dataclass(frozen=True)
class VerifyReport:
    """All records that were looked at.

    Attributes:
        rows: one per record, in the order of files and lines.
    """

    rows: Sequence[Checked]

    def count(self, status: CheckStatus) -> int:
        """Return how many records have this status."""
        return Counter(row.status for row in self.rows)[status]

    @property
    def ok(self) -> bool:
        """Whether at least one record was scored again and nothing disagrees or is damaged."""
        return self.count("ok") > 0 and not self.count("mismatch") and not self.count("unreadable")

    def footer(self) -> str:
        """Return the counts in one line."""
        counts = ", ".join(f"{self.count(status)} {status}" for status in MARKS)
        verdict = "verified" if self.ok else "NOT VERIFIED"
        return f"{verdict}: {len(self.rows)} records, {counts}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready."""
        rows = [{"where": r.where, "subject": r.subject, "status": r.status, "reason": r.reason} for r in self.rows]
        return {"ok": self.ok, "counts": {status: self.count(status) for status in MARKS}, "records": rows}
