"""Child processes: what they answer, how they end, and that nothing of the caller's main script is in them."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardgym.errors import InputError
from shardgym.processes import Child, ChildError


@pytest.fixture
def start():
    """Start children that are ended with the test."""
    children = []

    def started(settings=None, module="processes_toys", **options):
        children.append(Child(module, settings, **options))
        return children[-1]

    yield started
    for child in children:
        child.kill()


def ask(child, message, timeout_s=20.0):
    child.send(message)
    return child.receive(timeout_s)


def facts(child):
    status, found = child.receive(60.0)
    assert status == "ok", found
    return found


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


@pytest.mark.parametrize("new_interpreter", [False, True])
def test_a_child_answers_refuses_fails_and_logs(start, caplog, new_interpreter, monkeypatch):
    monkeypatch.setenv("OF_THE_PARENT", "there")
    variables = {**os.environ, "OF_THE_CHILD": "here"}
    monkeypatch.setenv("NOT_FOR_THE_CHILD", "there")
    with caplog.at_level(logging.INFO, "shardgym"):
        child = start(lambda: 7, environment=variables, new_interpreter=new_interpreter)
        found = facts(child)
        assert (found["settings"], found["main"]) == (7, None)
        assert ask(child, 4) == ("ok", 8)
        assert ask(child, "refuse") == ("refused", "not this")
        assert ask(child, "fail") == ("failed", "KeyError: 'that'")
        assert ask(child, "log") == ("ok", None)
    assert ("shardgym.toys", logging.INFO, "3 of four") in caplog.record_tuples
    assert (ask(child, "OF_THE_PARENT"), ask(child, "OF_THE_CHILD")) == (("ok", "there"), ("ok", "here"))
    assert ask(child, "NOT_FOR_THE_CHILD") == ("ok", None)
    assert "OF_THE_CHILD" not in os.environ
    assert os.environ["NOT_FOR_THE_CHILD"] == "there"
    assert os.getpgid(child.pid) == child.pid
    assert not child.dead


def test_children_are_copies_of_one_server_and_can_use_threads(start):
    first, second = start(1), start(2)
    assert facts(first)["server"] == facts(second)["server"] != os.getpid()
    assert ask(first, "threads", 60.0) == ("ok", 512.0**3)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hold", "its process took longer than 0.3 s and was stopped"),
        ("leave", "its process ended with exit code 3: on purpose"),
        ("return", "its process ended with exit code 4: it printed nothing"),
        ("fork and leave", "its process ended with exit code 3: it printed nothing"),
    ],
)
def test_the_end_of_a_child_is_told_with_its_last_line(start, message, reason):
    child = start(quiet=True)
    facts(child)
    with pytest.raises(ChildError) as caught:
        ask(child, message, 0.3 if message == "hold" else 20.0)
    assert str(caught.value) == reason
    assert child.dead


def test_a_signal_is_named_and_what_does_not_start_says_why(start):
    child = start()
    facts(child)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildError, match=r"was killed by signal 9 \(SIGKILL\); the system may have run out of memory"):
        ask(child, 4)
    child = start(module="shardgym.no_such_module")
    assert child.receive(60.0) == ("failed", "ModuleNotFoundError: No module named 'shardgym.no_such_module'")
    with pytest.raises(InputError, match="cannot be pickled for a child process: TypeError: cannot pickle"):
        start(threading.Lock())


@pytest.mark.parametrize("message", ["spin", "let spin"])
def test_processor_time_is_known_also_after_the_end(start, message):
    child = start()
    facts(child)
    before = child.cpu_seconds()
    ask(child, message)
    child.kill()
    assert child.cpu_seconds() - before >= 0.05


def test_the_next_child_has_a_new_server_where_one_was_killed(start):
    child = start()
    server = facts(child)["server"]
    os.kill(server, signal.SIGKILL)
    with pytest.raises(ChildError, match="its process ended with exit code 255"):
        child.receive(20.0)
    child.kill()
    assert ended_in_time(child.pid)
    again = start()
    assert facts(again)["server"] != server


SCRIPT = """
import os, sys
print("main", flush=True)
from shardgym import processes
if len(sys.argv) > 2:
    processes.preload(sys.argv[2])
class Here:
    value = 7
new = sys.argv[1] == "new interpreter killed"
child = processes.Child("processes_toys", lambda: Here().value, new_interpreter=new)
kind, found = child.receive(60.0)
print(kind, found["settings"] if kind == "ok" else found, child.pid, flush=True)
child.send("hold")
if sys.argv[1] != "left":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["killed", "new interpreter killed", "left"])
def test_a_script_is_not_run_again_and_its_children_end_with_it(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, script, end], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == (0 if end == "left" else -signal.SIGKILL), done.stderr
    first, kind, value, pid = done.stdout.split()
    assert (first, kind, value) == ("main", "ok", "7")
    assert ended_in_time(int(pid))


@pytest.mark.parametrize("problem", ["os.abort()", "raise OSError('no such library')"])
def test_an_import_that_ends_the_server_is_left_to_the_children(tmp_path, problem):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "ends_it.py").write_text(f"import os\n{problem}\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])}
    command = [sys.executable, tmp_path / "script.py", "left", "ends_it"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:3] == ["main", "ok", "7"], done.stderr
