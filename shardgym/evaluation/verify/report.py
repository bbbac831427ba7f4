"""What a verification found, record by record and as a whole."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from shardgym.errors import format_ranges
from shardgym.evaluation.verify.agreement import SolverBias, biased_solvers

#: `ok`: agrees with a fresh score. `mismatch`: does not, or is not of the run in `run.json`. `skipped`: claims a cost
#: that cannot be scored here. `unreadable`: the line is damaged or its task is not at hand. `failure`: claims no cost
#: and holds nothing that shows whether it failed.
CheckStatus = Literal["ok", "mismatch", "skipped", "unreadable", "failure"]

MARKS: dict[CheckStatus, str] = {"ok": "✅", "mismatch": "❌", "skipped": "⏭", "unreadable": "❌", "failure": "⏭"}


@dataclass(frozen=True)
class RecordCheck:
    """One record and what became of it.

    Attributes:
        where: file and line.
        subject: suite, task, solver and seed; "" when the line is damaged.
        status: see `CheckStatus`.
        reason: why it is not ok; for one that is, the stored and the fresh time.
        solver: name of the solver; "" when the line is damaged.
        task_index: position of the task in its suite; None when the line is damaged.
        relative: new over stored time of a cost that was measured again, over the drift of its task; None for others.
        claims_cost: whether the record claims a cost, which an "ok" of it then confirms.
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


@dataclass(frozen=True)
class VerifyReport:
    """All records that were looked at.

    Attributes:
        rows: one per record, in the order of files and lines.
        gaps: one line for every file that lacks records of its run, lies beside no `run.json`, or holds times of
            several sessions of a task.
        unused_trust: names that were to be trusted and that no record names.
        unfinished: one line for everything that was left when the time was over.
    """

    rows: Sequence[RecordCheck]
    gaps: Sequence[str] = ()
    unused_trust: Sequence[str] = ()
    unfinished: Sequence[str] = ()

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
        return [f"{solver} is consistently {bias} of {file}" for file, solver, bias in self._biases if bias.is_refused]

    @property
    def doubted(self) -> list[str]:
        """The same for solvers that are off by less: they make a verification partial, and do not fail it."""
        return [
            f"{solver} is consistently {bias} of {file}: flattered, or a machine that differs"
            for file, solver, bias in self._biases
            if not bias.is_refused
        ]

    @cached_property
    def _biases(self) -> list[tuple[str, str, SolverBias]]:
        """File, solver and what is off; each file by itself, several seeds of a task as one value."""
        seeds: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        for row in self.rows:
            if row.relative is not None and row.task_index is not None:
                seeds[row.file, row.solver, row.task_index].append(math.log(row.relative))
        logs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (file, solver, _), values in seeds.items():
            logs[file][solver].append(statistics.fmean(values))
        return [(file, solver, bias) for file in logs for solver, bias in biased_solvers(logs[file]).items()]

    @property
    def ok(self) -> bool:
        """Whether of every file at least one record was verified, in time, and nothing disagrees or is damaged."""
        num_bad = self.count("mismatch") + self.count("unreadable") + len(self.unverified_files) + len(self.biased)
        return self.count("ok") > 0 and not num_bad and not self.unfinished

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
        first = f"{self.verdict}: {len(self.rows)} records, {', '.join(counts)}"
        nothing = [f"nothing verified in {file}{self._why_skipped(file)}" for file in self.unverified_files]
        return "\n".join(
            [first, *self.unfinished, *self.biased, *self.doubted, *nothing, *self._failure_lines(), *self.gaps]
        )

    def _why_skipped(self, file: str) -> str:
        """Return the most frequent reason why records of a file were skipped; empty where none were."""
        reasons = Counter(row.reason for row in self.rows if row.file == file and row.status == "skipped")
        return f": {reasons.most_common(1)[0][0]}" if reasons else ""

    def _failure_lines(self) -> list[str]:
        """Return a line per file with the tasks of every solver's unchecked failures."""
        tasks: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            if row.status == "failure" and row.task_index is not None:
                tasks[row.file][row.solver].append(row.task_index)
        lines = []
        for file, solvers in tasks.items():
            named = [f"{solver} on {format_tasks(indices)}" for solver, indices in solvers.items()]
            lines.append(f"failures, not checked, in {file}: {'; '.join(named)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the report JSON-ready."""
        rows = [{"where": r.where, "subject": r.subject, "status": r.status, "reason": r.reason} for r in self.rows]
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "counts": {status: self.count(status) for status in MARKS},
            "unverified_files": self.unverified_files,
            "biased": self.biased,
            "doubted": self.doubted,
            "gaps": list(self.gaps),
            "unused_trust": list(self.unused_trust),
            "unfinished": list(self.unfinished),
            "records": rows,
        }


def format_tasks(indices: Iterable[int]) -> str:
    """Return for example "tasks 0-3, 7" or "task 7"; an index that is given twice counts once."""
    text = format_ranges(indices)
    return f"{'task' if text.isdigit() else 'tasks'} {text}"
