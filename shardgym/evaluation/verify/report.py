"""What a verification found, record by record and as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardgym.evaluation.verify.bias import biased_solvers, doubted_solvers
from shardgym.evaluation.verify.checked import MARKS, Checked, CheckStatus
from shardgym.evaluation.verify.failures import failure_lines


@dataclass(frozen=True)
class VerifyReport:
    """All records that were looked at.

    Attributes:
        rows: one per record, in the order of files and lines.
        gaps: one line for every file that lacks records of its run, lies beside no `run.json`, or holds times of
            several sessions of a task.
    """

    rows: Sequence[Checked]
    gaps: Sequence[str] = ()

    def count(self, status: CheckStatus) -> int:
        """Return how many records have this status."""
        return Counter(row.status for row in self.rows)[status]

    @property
    def unverified_files(self) -> list[str]:
        """Files of whose records none could be verified, or none of those that claim a cost."""
        claiming = {row.file for row in self.rows if row.claims_cost}
        verified = {row.file for row in self.rows if row.status == "ok" and row.claims_cost == (row.file in claiming)}
        return [file for file in dict.fromkeys(row.file for row in self.rows) if file not in verified]

    @property
    def biased(self) -> list[str]:
        """One line for every solver whose measured costs are off the others' on average over its tasks."""
        return biased_solvers(self.rows)

    @property
    def doubted(self) -> list[str]:
        """The same for solvers that are off by less: they make a verification partial, and do not fail it."""
        return doubted_solvers(self.rows)

    @property
    def ok(self) -> bool:
        """Whether of every file at least one record was verified, and nothing disagrees or is damaged."""
        bad = self.count("mismatch") + self.count("unreadable") + len(self.unverified_files) + len(self.biased)
        return self.count("ok") > 0 and not bad

    @property
    def verdict(self) -> str:
        """`partly verified` when records could not be checked, are missing, not measured together, or doubted."""
        if not self.ok:
            return "NOT VERIFIED"
        partly = self.count("skipped") or self.count("failure") or self.gaps or self.doubted
        return "partly verified" if partly else "verified"

    def footer(self) -> str:
        """Return the verdict and the counts, and a line for everything that concerns more than one record."""
        counts = [f"{self.count(status)} {status}" for status in MARKS if status != "failure"]
        if self.count("failure"):
            counts.append(f"{self.count('failure')} failed (not checked)")
        nothing = [f"nothing verified in {file}" for file in self.unverified_files]
        first = f"{self.verdict}: {len(self.rows)} records, {', '.join(counts)}"
        return "\n".join([first, *self.biased, *self.doubted, *nothing, *failure_lines(self.rows), *self.gaps])

    def to_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready."""
        rows = [{"where": r.where, "subject": r.subject, "status": r.status, "reason": r.reason} for r in self.rows]
        counts = {status: self.count(status) for status in MARKS}
        return {
            "ok": self.ok, "verdict": self.verdict, "counts": counts, "unverified_files": self.unverified_files,
            "biased": self.biased, "doubted": self.doubted, "gaps": list(self.gaps), "records": rows,
        }  # fmt: skip
