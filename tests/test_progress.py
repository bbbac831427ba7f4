"""Progress in logs."""

from __future__ import annotations

import pytest

from shardgym.progress import LOG_STYLE, ProgressBar


def test_a_log_gets_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """No carriage returns, which would pile up on one line, and a last line that says it is done."""
    monkeypatch.setitem(LOG_STYLE, "delay", 0.0)
    with ProgressBar(shown=True, total=3, unit="plan", desc="toy") as bar:
        for _ in range(3):
            bar.remark("only in terminals")
            bar.update()
    text = capsys.readouterr().err
    assert "\r" not in text
    assert text.strip().splitlines()[-1].startswith("toy: 100%")
    assert "only in terminals" not in text


@pytest.mark.parametrize("shown", [True, False])
def test_what_is_done_at_once_prints_nothing(capsys: pytest.CaptureFixture[str], shown: bool):
    """Nor does a bar that is not wanted."""
    with ProgressBar(shown=shown, total=3) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
