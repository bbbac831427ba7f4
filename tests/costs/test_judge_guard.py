"""While a run goes on, judges are closed to everybody but the thread that scores."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardgym import InputError
from shardgym.costs.judge_guard import judges_closed, require_open

VARIABLE = "SHARDGYM_JUDGES_CLOSED"
ASK = "from shardgym.costs.judge_guard import require_open; require_open('it')"


def is_open() -> bool:
    try:
        require_open("the judge")
    except InputError:
        return False
    return True


def is_open_elsewhere() -> bool:
    """In another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(is_open).result()


def is_open_in_a_process(environment=None) -> bool:
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(autouse=True)
def leaves_judges_open():
    yield
    assert is_open()
    assert VARIABLE not in os.environ


def test_outside_of_a_block_judges_are_open_to_all():
    assert is_open()
    assert is_open_elsewhere()


def test_inside_they_are_closed_to_the_own_thread_and_others():
    with judges_closed():
        assert not is_open()
        assert not is_open_elsewhere()
        with pytest.raises(InputError, match=r"the judge scores plans: a solver may .* only that run may ask it"):
            require_open("the judge")


def test_judging_opens_them_to_the_thread_that_scores_alone():
    with judges_closed() as judging:
        with judging():
            assert is_open()
            assert not is_open_elsewhere()
            with judging():
                assert is_open()
            assert is_open()
        assert not is_open()


def test_a_thread_that_is_started_while_they_are_open_to_another_finds_them_closed():
    with judges_closed() as judging, judging(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(is_open).result()


def test_judging_inside_of_another_run_opens_nothing():
    """A solver could otherwise start a run of its own, in its own thread or in another one."""

    def opened_anew() -> bool:
        with judges_closed() as judging, judging():
            return is_open()

    with judges_closed():
        assert not opened_anew()
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(opened_anew).result()
    assert opened_anew()


def test_a_judge_may_be_a_run_of_its_own():
    with judges_closed() as judging, judging():
        with judges_closed() as judging_too:
            assert is_open()
            with judging_too():
                assert is_open()
        assert is_open()


def test_blocks_that_end_in_any_order_keep_them_closed_until_the_last_one_ends():
    first, second = judges_closed(), judges_closed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not is_open()
    assert VARIABLE in os.environ
    second.__exit__(None, None, None)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_ends_the_block_and_judging(error):
    with judges_closed() as judging:
        with pytest.raises(error), judging():
            raise error
        assert not is_open()
    with pytest.raises(error), judges_closed():
        raise error


def test_a_child_process_finds_them_closed_also_while_a_plan_is_scored():
    assert is_open_in_a_process()
    with judges_closed() as judging, judging():
        assert not is_open_in_a_process()


def test_a_run_in_a_child_process_of_a_run_cannot_open_them():
    code = f"from shardgym.costs.judge_guard import judges_closed\nwith judges_closed() as judging, judging(): {ASK}"
    with judges_closed():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: it scores plans" in done.stderr


def test_taking_the_variable_away_opens_nothing_in_the_process_of_the_run():
    with judges_closed():
        del os.environ[VARIABLE]
        assert not is_open()


def test_what_the_docs_say_is_not_refused_a_process_with_an_environment_of_its_own():
    """If this is refused one day, the docs promise too little."""
    with judges_closed():
        assert is_open_in_a_process({k: v for k, v in os.environ.items() if k != VARIABLE})
