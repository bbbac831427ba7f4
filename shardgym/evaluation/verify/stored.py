"""Reading what is to be verified: damaged lines become rows of the report, not errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.evaluation.resume import key_of
from shardgym.evaluation.verify.checked import Checked, CheckStatus
from shardgym.files import read_lines


@dataclass(frozen=True)
class Stored:
    """A readable record and where it was found."""

    path: Path
    where: str
    result: Result

    @property
    def subject(self) -> str:
        """Suite, task, solver and seed."""
        r = self.result
        return f"{r.suite}/{r.task_index} {r.solver} seed {r.seed}"

    def row(self, status: CheckStatus, reason: str, relative: float | None = None) -> Checked:
        """Return this record's row of the report; what claims no cost and was not checked is a failure."""
        if status == "skipped" and self.result.status != "ok":
            status = "failure"
        result = self.result
        claims = result.status == "ok"
        return Checked(self.where, self.subject, status, reason, result.solver, result.task_index, relative, claims)


def read_stored(path: Path) -> list[Stored | Checked]:
    """Return the records of a file; a line that is damaged, doubled or cut off is a row of the report."""
    rows: list[Stored | Checked] = []
    seen = set()
    for line in read_lines(path):
        where = line.where(path)
        if not line.whole:
            rows.append(Checked(where, "", "skipped", "cut off while it was written; a resumed run drops it"))
            continue
        try:
            stored = Stored(path, where, Result.from_json(line.text, source="record"))
        except InputError as error:
            rows.append(Checked(where, "", "unreadable", str(error)))
            continue
        twice = key_of(stored.result) in seen
        seen.add(key_of(stored.result))
        rows.append(stored.row("mismatch", "the second record of this in the file") if twice else stored)
    return rows
