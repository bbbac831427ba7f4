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
        claims_cost: whether the record says that its plan has a cost.
    """

    where: str
    subject: str
    status: CheckStatus
    reason: str
    claims_cost: bool = False

    @property
    def file(self) -> str:
        """The file that the record is in."""
        return self.where.rpartition(":")[0]

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
    def unverified_files(self) -> list[str]:
        """Files that hold records of which none could be verified."""
        verified = {row.file for row in self.rows if row.status == "ok"}
        return [file for file in dict.fromkeys(row.file for row in self.rows) if file not in verified]

    @property
    def ok(self) -> bool:
        """Whether of every file at least one record was verified, and nothing disagrees or is damaged."""
        bad = self.count("mismatch") + self.count("unreadable") + len(self.unverified_files)
        return self.count("ok") > 0 and not bad

    @property
    def verdict(self) -> str:
        """`partly verified` when records that claim a cost were skipped."""
        if not self.ok:
            return "NOT VERIFIED"
        partly = any(row.status == "skipped" and row.claims_cost for row in self.rows)
        return "partly verified" if partly else "verified"

    def footer(self) -> str:
        """Return the verdict and the counts, and a line for every file of which nothing was verified."""
        counts = ", ".join(f"{self.count(status)} {status}" for status in MARKS)
        nothing = [f"nothing verified in {file}" for file in self.unverified_files]
        return "\n".join([f"{self.verdict}: {len(self.rows)} records, {counts}", *nothing])

    def to_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready."""
        rows = [{"where": r.where, "subject": r.subject, "status": r.status, "reason": r.reason} for r in self.rows]
        counts = {status: self.count(status) for status in MARKS}
        return {
            "ok": self.ok, "verdict": self.verdict, "counts": counts, "unverified_files": self.unverified_files,
            "records": rows,
        }  # fmt: skip
