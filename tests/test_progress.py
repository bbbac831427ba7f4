"""Progress in logs."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from shardgym.progress import LOG_STYLE, ProgressBar, log_to_stderr


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def remark_within_a_bar() -> None:
    with log_to_stderr(info=True), ProgressBar(shown=True, total=2, desc="toy", ncols=60, nrows=10) as bar:
        bar.update()
        logging.getLogger("shardgym.solvers.toy").info("compiling")
        bar.update()


def test_a_remark_in_a_terminal_is_above_the_bar(monkeypatch: pytest.MonkeyPatch):
    """The bar is wiped off its line, and drawn again below."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    remark_within_a_bar()
    before, after = sys.stderr.getvalue().split("shardgym: compiling\n")
    assert before.endswith(" \r")
    assert after.startswith("\rtoy:  50%")


def test_a_remark_in_a_log_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LOG_STYLE, "delay", 0.0)
    remark_within_a_bar()
    text = capsys.readouterr().err
    assert "\r" not in text
    assert "shardgym: compiling" in text.splitlines()


def test_remarks_that_are_not_wanted_leave_warnings(capsys: pytest.CaptureFixture[str]):
    with log_to_stderr(info=False):
        logging.getLogger("shardgym.solvers.toy").info("compiling")
        logging.getLogger("shardgym.solvers.toy").warning("no such folder")
    assert capsys.readouterr().err == "shardgym: no such folder\n"
