"""Everything but measuring works on macOS and Windows: no module needs what only POSIX or Linux has to be imported."""

import inspect
import sys
from pathlib import Path
from types import CodeType

import pytest

from shardgym import MeasurementError
from shardgym.costs.fbgemm.cost import FbgemmCost

ROOT = Path(__file__).parents[1]
#: Modules and attributes of `os`, `mmap`, `signal` and `socket`.
MISSING = {
    "fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "posix",
    "sched_getaffinity", "sched_setaffinity", "sysconf", "fork", "killpg", "setsid", "getuid", "WNOHANG",
    "MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE", "MADV_HUGEPAGE", "SIGKILL", "SIGSTOP", "SIGHUP", "SIGALRM",
    "alarm", "setitimer", "AF_UNIX",
}  # fmt: skip


def names_in_an_import(code):
    """Yield the names that a module and its classes use when they are made, without those of functions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_flags & inspect.CO_NEWLOCALS:
            yield from names_in_an_import(inner)


@pytest.mark.repository
def test_every_module_can_be_imported_without_what_windows_lacks():
    paths = [path for folder in ("shardgym", "baselines", "neuroshard") for path in (ROOT / folder).rglob("*.py")]
    used = {path: names_in_an_import(compile(path.read_text(encoding="utf-8"), path, "exec")) for path in paths}
    assert {path: found for path, names in used.items() if (found := MISSING.intersection(names))} == {}


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_measuring_elsewhere_is_one_clear_line(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(MeasurementError, match=rf"measuring needs Linux.* but this is {platform}: use cost 'roofline'"):
        FbgemmCost()
