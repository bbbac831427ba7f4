"""RunInfo: what the records of one folder have in common, kept next to them so that they are never mixed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.files import write_whole
from shardgym.records import CONFIG, Name, Record, Whole

RUN_INFO = "run.json"

#: Fields that grow with every run in the same folder; the others must stay as they are.
_GROWING = ("num_tasks", "solvers", "seeds")


@dataclass(frozen=True, config=CONFIG)
class RunInfo(Record):
    """What one folder of records is about.

    Attributes:
        suite: name of the suite.
        judge: name of the cost model that scores plans.
        judge_version: its version.
        judge_settings: keyword arguments it was made with.
        hardware: its hardware tag.
        oracle: name of the cost model that solvers query.
        oracle_settings: keyword arguments it was made with.
        time_limit_s: given to solvers; None when there was none.
        num_tasks: how many of the suite's tasks were asked for, counted from its first.
        solvers: names or labels of the solvers that were asked for.
        seeds: seeds that were asked for.
    """

    suite: Name
    judge: Name
    judge_version: str
    judge_settings: dict[str, Any]
    hardware: str
    oracle: Name
    oracle_settings: dict[str, Any]
    time_limit_s: float | None
    num_tasks: Annotated[Whole, Field(ge=0)]
    solvers: tuple[Name, ...]
    seeds: tuple[Whole, ...]
    schema: Literal["shardgym.run/1"] = "shardgym.run/1"

    @classmethod
    def beside(cls, folder: Path) -> Self | None:
        """Read the file of a folder; None when it has none."""
        path = folder / RUN_INFO
        return cls.load(path) if path.exists() else None

    def join(self, folder: Path) -> RunInfo:
        """Return this run together with those that the folder already holds.

        Raises:
            InputError: the folder is about something else; the first field that differs is named.
        """
        old = RunInfo.beside(folder)
        if old is None:
            return self
        for field in dataclasses.fields(self):
            was, now = getattr(old, field.name), getattr(self, field.name)
            if field.name not in _GROWING and was != now:
                raise InputError(
                    f"{folder} holds records of {field.name} {was!r}, this run has {now!r}: "
                    "give another folder, or --resume all to start afresh"
                )
        return dataclasses.replace(
            self,
            num_tasks=max(old.num_tasks, self.num_tasks),
            solvers=tuple(dict.fromkeys(old.solvers + self.solvers)),
            seeds=tuple(sorted({*old.seeds, *self.seeds})),
        )

    def check(self, result: Result, where: str) -> None:
        """Check that a stored record is of this run.

        Raises:
            InputError: it is of another suite, judge, judge version, hardware, oracle or time limit.
        """
        version = self.judge_version if result.cost is None else result.cost.version
        if version != self.judge_version:
            raise InputError(
                f"{where} holds a record of judge_version {version!r}, this run has {self.judge_version!r}: "
                "give another folder"
            )
        for name in ("suite", "judge", "hardware", "oracle", "judge_settings", "time_limit_s"):
            was, now = getattr(result, name), getattr(self, name)
            if was != now:
                raise InputError(f"{where} holds a record of {name} {was!r}, this run has {now!r}: give another folder")

    def write(self, folder: Path) -> None:
        """Write the file of a folder; raises `InputError` when that fails."""
        write_whole(folder / RUN_INFO, self.to_json(indent=2) + "\n")
