"""Fork servers: one interpreter behind many children, what happens when it ends, and that it ends with its parent."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from pathlib import Path

import pytest

from shardgym.children import ChildError, FreshChild
from shardgym.fork_server import ForkServer

MODULE = """
    import os, threading, time
    IMPORTED = time.perf_counter_ns()

    def start(settings):
        def answer(message):
            if message == "environment":
                return os.environ.get("OF_THE_SERVER")
            if message == "leave":
                print("on purpose", flush=True)
                os._exit(3)
            if message == "return":
                raise SystemExit(4)
            return settings
        return answer, {"imported": IMPORTED, "server": os.getppid(), "group": os.getpgid(0)}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the name of a module that only new interpreters can import."""
    name = f"served_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return name


def started(module, settings=None, environment=None, preload=True):
    child = FreshChild(module, settings or {}, environment or {}, [module] if preload else [])
    status, facts = child.receive(60.0)
    assert status == "ok"
    return child, facts


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ended_in_time(pid):
    deadline = time.monotonic() + 10
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not runs(pid)


def test_children_are_copies_of_one_interpreter_that_has_imported_the_module(module):
    first, of_first = started(module, {"number": 1})
    second, of_second = started(module, {"number": 2})
    assert of_first["imported"] == of_second["imported"]
    assert of_first["server"] == of_second["server"] != os.getpid()
    assert (of_first["group"], of_second["group"]) == (first.pid, second.pid)
    for number, child in enumerate((first, second), 1):
        child.send("settings")
        assert child.receive(20.0) == ("ok", {"number": number})
    assert first.cpu_seconds() > 0
    first.kill()
    assert first.dead
    assert not second.dead
    second.kill()


def test_a_child_imports_what_its_server_has_not(module):
    children = [started(module, preload=False) for _ in range(2)]
    (_, of_first), (_, of_second) = children
    assert of_first["server"] == of_second["server"]
    assert of_first["imported"] != of_second["imported"]
    for child, _ in children:
        child.kill()


def test_an_environment_is_that_of_its_server(module):
    for value in ("1", "2"):
        child, _ = started(module, environment={"OF_THE_SERVER": value})
        child.send("environment")
        assert child.receive(20.0) == ("ok", value)
        child.kill()


@pytest.mark.parametrize(
    ("message", "reason"),
    [("leave", "exit code 3: on purpose"), ("return", "exit code 1: SystemExit: 4")],
)
def test_the_end_of_a_copy_is_told_with_its_last_line(module, message, reason):
    child, _ = started(module)
    child.send(message)
    with pytest.raises(ChildError, match=reason):
        child.receive(20.0)
    child.kill()


def test_children_end_with_their_server_and_the_next_one_has_a_new_server(module):
    child, facts = started(module)
    os.kill(facts["server"], signal.SIGKILL)
    assert ended_in_time(child.pid)
    assert child.dead
    with pytest.raises(ChildError, match=r"was killed by signal 9 \(SIGKILL\)"):
        child.receive(20.0)
    again, of_again = started(module)
    assert of_again["server"] != facts["server"]
    for one in (child, again):
        one.kill()


def test_an_interpreter_that_an_import_kills_is_told_like_the_end_of_a_child(module, tmp_path):
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n")
    child = FreshChild(module, {}, {}, [module])
    with pytest.raises(ChildError, match=r"its process was killed by signal 6 \(SIGABRT\)"):
        child.receive(20.0)
    assert child.dead
    child.kill()


def test_a_server_that_nobody_needs_ends(module, monkeypatch):
    child, facts = started(module)
    child.kill()
    assert runs(facts["server"])  # the next child will come soon
    del child
    for number in range(ForkServer._recent.maxsize):
        started(module, environment={"OF_THE_SERVER": str(number)})[0].kill()
    assert ended_in_time(facts["server"])


def test_a_broken_off_request_ends_the_server(module, monkeypatch):
    child, facts = started(module)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shardgym.fork_server.wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            child._server.wait(child.pid, os.WNOHANG)
    assert ended_in_time(facts["server"])
    assert ended_in_time(child.pid)
    again, _ = started(module)  # whose server does not answer the old request
    assert again.ping(20.0)
    for one in (child, again):
        one.kill()


@pytest.mark.measured
def test_the_server_of_measuring_ranks_has_one_thread():
    """A fork has no copy of other threads, and OpenMP would wait for them."""
    from shardgym.costs.fbgemm.ranks import RankGroup

    group = RankGroup(2, "cpu", 60.0)
    group.start()
    server = group._ranks[0]._server.pid
    assert [task.name for task in Path(f"/proc/{server}/task").iterdir()] == [str(server)]
    group.close()
