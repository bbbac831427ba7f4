"""What a run does about results that its folder holds already."""

from __future__ import annotations

from enum import StrEnum

from shardgym.errors import UnknownNameError
from shardgym.evaluation.result import Result


class Resume(StrEnum):
    """Modes of `evaluate(..., resume=...)` and `shardgym run --resume`."""

    #: Solve what has no record.
    MISSING = "missing"
    #: Solve what has no record and again what failed.
    FAILED = "failed"
    #: Start afresh; the old records are moved aside.
    ALL = "all"
    #: Solve nothing, report what is there.
    NONE = "none"

    @classmethod
    def of(cls, mode: str) -> Resume:
        """Return the mode of this name; raises `UnknownNameError`."""
        try:
            return cls(mode)
        except ValueError:
            raise UnknownNameError("resume mode", mode, list(cls)) from None


#: Identifies a record within a folder: task index, solver name, seed.
Key = tuple[int, str, int]


def key_of(result: Result) -> Key:
    """Return what identifies a record within its folder."""
    return (result.task_index, result.solver, result.seed)
