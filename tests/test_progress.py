"""Progress in logs."""

import logging

import pytest

from shardgym.progress import log_to_stderr, progress_bar


@pytest.mark.parametrize("info", [True, False])
def test_a_log_gets_remarks_that_are_wanted_and_warnings_without_a_bar(capsys, info):
    with log_to_stderr(info=info), progress_bar(shown=True, total=2) as bar:
        bar.update()
        logging.getLogger("shardgym.solvers.toy").info("compiling")
        logging.getLogger("shardgym.solvers.toy").warning("no such folder")
    assert capsys.readouterr().err == "shardgym: compiling\n" * info + "shardgym: no such folder\n"
