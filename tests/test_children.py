"""Child processes: what is said, what happens to one that says nothing, too much or half a word, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from shardgym.child import MAX_BYTES, Channel
from shardgym.children import ChildError, ForkedChild, FreshChild
from shardgym.errors import InputError


def start(parent):
    """Answers: doubles numbers, asks the parent about text, and does odd things on request."""

    def answer(message):
        if isinstance(message, int):
            return 2 * message
        if message == "wait":
            time.sleep(60)
        if message == "leave":
            os._exit(3)
        if message == "refuse":
            raise InputError("not this")
        if message == "fail":
            raise KeyError("that")
        if message == "spin":
            end = time.thread_time() + 0.05
            while time.thread_time() < end:
                pass
        return parent.ask(message)

    return answer, {"pid": os.getpid()}


@pytest.fixture
def child():
    child = ForkedChild(start, reply=str.upper)
    yield child
    child.kill()


def ask(child, message, timeout_s=20.0):
    child.send(message)
    return child.receive(timeout_s)


def test_a_child_answers_asks_refuses_and_fails(child):
    assert child.receive(20.0) == ("ok", {"pid": child.pid})
    assert ask(child, 4) == ("ok", 8)
    assert ask(child, "text") == ("ok", "TEXT")
    assert ask(child, "refuse") == ("refused", "not this")
    assert ask(child, "fail") == ("failed", "KeyError: 'that'")
    assert child.ping(20.0)
    assert not child.dead


@pytest.mark.parametrize(
    ("message", "reason"),
    [("wait", "its process took longer than 0.3 s and was stopped"), ("leave", "its process ended with exit code 3")],
)
def test_the_end_of_a_child_is_told(child, message, reason):
    child.receive(20.0)
    with pytest.raises(ChildError) as caught:
        ask(child, message, 0.3 if message == "wait" else 20.0)
    assert str(caught.value) == reason
    assert child.timed_out == (message == "wait")
    assert child.dead
    assert not child.ping(1.0)


def test_processor_time_is_the_systems_also_after_the_end(child):
    child.receive(20.0)
    before = child.cpu_seconds()
    ask(child, "spin")
    assert child.cpu_seconds() - before >= 0.05
    child.kill()
    assert child.cpu_seconds() - before >= 0.04  # counted in another way


def test_a_child_that_rests_is_killed_all_the_same(child):
    child.receive(20.0)
    child.pause()
    assert not child.ping(0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_fresh_child_that_cannot_start_says_its_last_line():
    child = FreshChild("shardgym.no_such_module", {}, {})
    with pytest.raises(ChildError, match=r"its process ended with exit code 1: .*No module named"):
        child.receive(60.0)
    child.kill()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TimeoutError),
        (b"123", TimeoutError),
        ((10).to_bytes(8, "little") + b"12345", TimeoutError),
        ((MAX_BYTES + 1).to_bytes(8, "little"), ValueError),
        ((5).to_bytes(8, "little") + b"hello", ValueError),
        ((4).to_bytes(8, "little") + b"null", None),
    ],
)
def test_whatever_comes_is_read_in_time(data, error):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        channel = Channel(ours, json)
        deadline = time.monotonic() + 0.2
        if error is None:
            assert channel.receive(deadline) is None
        else:
            with pytest.raises(error):
                channel.receive(deadline)


def test_nobody_waits_for_one_that_takes_no_messages():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        Channel(ours, json).send("x" * 2**24, time.monotonic() + 0.2)


def test_a_closed_connection_is_an_end_and_a_dead_sender_too():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(EOFError):  # a copy of the sender may hold the connection
        Channel(ours, json, has_ended=lambda: True).receive(time.monotonic() + 20)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(EOFError):
        Channel(ours, json).receive(time.monotonic() + 20)


def test_a_signal_is_named(child):
    child.receive(20.0)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match=r"was killed by signal 9 \(SIGKILL\); the system may have run out of memory"):
        ask(child, 4)
