"""The example trains under both plans and shows them side by side."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from torchrec_toys import MARKS

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrec_dlrm.py"

pytestmark = [*MARKS, pytest.mark.repository, pytest.mark.slow]


def test_both_plans_train(capfd: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](["--steps", "3"])
    header, _, *rows = capfd.readouterr().out.splitlines()
    assert header.split() == ["plan", "of", "TorchRec", "ShardGym"]
    assert [row.split("  ")[0] for row in rows] == [
        "rank 0", "rank 1", "tables that are cut", "torchrec_rating, modelled ms", "roofline, modelled ms",
        "median step on these CPUs, ms", "loss, first and last step",
    ]  # fmt: skip
    assert all(0.3 < float(loss) < 1.0 for loss in rows[-1].removeprefix("loss, first and last step").split())
    assert len(rows[-1].split()) == 5 + 4
