"""Everything but measuring works on macOS and Windows: no module needs what only POSIX or Linux has to be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardgym import MeasurementError
from shardgym.costs.fbgemm import FbgemmCost

#: Imports all modules once, so that libraries are loaded, and then again without what Windows lacks.
SCRIPT = """
import builtins, importlib, mmap, os, pkgutil, signal, socket, sys

PACKAGES = ("shardgym", "baselines", "neuroshard")
MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "posix")
MISSING = {
    os: ("sched_getaffinity", "sched_setaffinity", "sysconf", "fork", "killpg", "setsid", "getuid", "WNOHANG"),
    mmap: ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE", "MADV_HUGEPAGE"),
    signal: ("SIGKILL", "SIGSTOP", "SIGHUP", "SIGALRM", "alarm", "setitimer"),
    socket: ("AF_UNIX",),
}


def of_this_project(name):
    return name.partition(".")[0] in PACKAGES


def names():
    for package in map(importlib.import_module, PACKAGES):
        yield package.__name__
        yield from (found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


def without_posix(name, globals=None, locals=None, fromlist=(), level=0):
    if name in MODULES and of_this_project((globals or {}).get("__name__", "")):
        raise ImportError(f"{name} is not for Windows")
    return original(name, globals, locals, fromlist, level)


present = []
for name in names():
    if name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(name)
    except ImportError:  # an extra that is not installed
        continue
    present.append(name)

original, builtins.__import__ = builtins.__import__, without_posix
for module, attributes in MISSING.items():
    for attribute in attributes:
        if hasattr(module, attribute):
            delattr(module, attribute)
for name in [name for name in sys.modules if of_this_project(name)]:
    del sys.modules[name]
for name in present:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
print(len(present))
"""


def test_every_module_can_be_imported_without_what_windows_lacks():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=True)
    *failures, count = done.stdout.splitlines()
    assert failures == []
    assert int(count) > 60


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_measuring_elsewhere_is_one_clear_line(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(MeasurementError, match=rf"measuring needs Linux, this is {platform}: .*'roofline'"):
        FbgemmCost()
