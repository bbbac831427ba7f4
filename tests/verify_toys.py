"""Records of toy solvers that are changed by hand."""

from __future__ import annotations

import json
import lzma

TOY = "evaluation_toys:"


def edit(folder, number, change):
    """Change the record on line `number` by hand."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[number - 1])
    change(record)
    lines[number - 1] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")


def pack(folder):
    """Put packed records in the place of plain ones, as boards are committed; returns where they are."""
    path = folder / "records.jsonl"
    packed = folder / "records.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    return packed
