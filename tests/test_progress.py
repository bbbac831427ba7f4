"""Progress in terminals, and in logs."""

import io
import logging
import sys

import pytest

from shardgym.progress import log_to_stderr, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def remark_within_a_bar() -> None:
    with log_to_stderr(info=True), progress_bar(shown=True, total=2, desc="toy", ncols=60, nrows=10) as bar:
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


def test_a_log_gets_the_remark_alone(capsys: pytest.CaptureFixture[str]):
    remark_within_a_bar()
    assert capsys.readouterr().err == "shardgym: compiling\n"


def test_remarks_that_are_not_wanted_leave_warnings(capsys: pytest.CaptureFixture[str]):
    with log_to_stderr(info=False):
        logging.getLogger("shardgym.solvers.toy").info("compiling")
        logging.getLogger("shardgym.solvers.toy").warning("no such folder")
    assert capsys.readouterr().err == "shardgym: no such folder\n"
