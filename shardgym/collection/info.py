"""CollectionInfo: what the measurements of one folder have in common, so that they are never mixed with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic.dataclasses import dataclass

from shardgym.errors import InputError
from shardgym.files import write_whole
from shardgym.records import CONFIG, Name, Record

INFO = "collection.json"


@dataclass(frozen=True, config=CONFIG)
class CollectionInfo(Record):
    """What a folder of measurements is about.

    Attributes:
        hardware: tag of the machine.
        versions: of what can change a time.
        settings: which samples, and how they are measured.
    """

    hardware: Name
    versions: dict[str, str]
    settings: dict[str, Any]
    schema: Literal["shardgym.collection/1"] = "shardgym.collection/1"

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Read the file of a folder; raises `InputError` when it has none."""
        path = folder / INFO
        if not path.exists():
            raise InputError(f"{folder} holds no {INFO}: expected a folder that 'shardgym collect' wrote into")
        return cls.load(path)

    def claim(self, folder: Path) -> None:
        """Write the file of a new folder, or check that the folder is about the same.

        Raises:
            InputError: the folder is about something else; the first field that differs is named.
        """
        if not (folder / INFO).exists():
            strangers = sorted(p.name for p in folder.iterdir() if p.suffix in (".jsonl", ".parquet"))
            if strangers:
                raise InputError(f"{folder} holds {strangers[0]} but no {INFO}: give an empty folder")
            write_whole(folder / INFO, self.to_json(indent=2) + "\n")
            return
        old = CollectionInfo.of_folder(folder)
        for group in (("hardware", old.hardware, self.hardware), *_pairs(old, self)):
            name, was, now = group
            if was != now:
                raise InputError(
                    f"{folder} holds measurements of {name} {was!r}, this run has {now!r}: give another folder"
                )


def _pairs(old: CollectionInfo, new: CollectionInfo) -> list[tuple[str, Any, Any]]:
    """Return (name, old value, new value) of all settings and versions; None where one has none."""
    return [
        (name, was.get(name), now.get(name))
        for was, now in ((old.settings, new.settings), (old.versions, new.versions))
        for name in {**was, **now}
    ]
