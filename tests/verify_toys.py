"""Verifying records of toy solvers that were changed by hand."""

from __future__ import annotations

import json
import lzma

from evaluation_toys import CountCost, DriftingCost

from shardgym.evaluation import verify

TOY = "evaluation_toys:"
TRUST = [CountCost.name, DriftingCost.name]


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


def forget_run(folder):
    """Records without their run.json are held to nothing but themselves."""
    (folder / "run.json").unlink()


def statuses(folder, **options):
    return [row.status for row in verify([folder], **{"trust": TRUST} | options).rows]


def problem(folder, number):
    report = verify([folder], trust=TRUST)
    assert not report.ok
    assert [row.status == "ok" for row in report.rows] == [i + 1 != number for i in range(len(report.rows))]
    return report.rows[number - 1]


def unmeasured(record):
    empty = [[None] * 5 for _ in record["cost"]["per_device"]]
    record["cost"].update(per_device=empty, reason="the worker died")
    record.update(status="unmeasured", reason="the worker died")
