"""Everything but measuring works on macOS and Windows: no module needs what only POSIX or Linux has to be imported."""

import ast
import sys
from pathlib import Path

import pytest

from shardgym import MeasurementError
from shardgym.costs.fbgemm.cost import FbgemmCost

ROOT = Path(__file__).parents[1]
MODULES = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "posix"}
MISSING = {
    "os": {"sched_getaffinity", "sched_setaffinity", "sysconf", "fork", "killpg", "setsid", "getuid", "WNOHANG"},
    "mmap": {"MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE", "MADV_HUGEPAGE"},
    "signal": {"SIGKILL", "SIGSTOP", "SIGHUP", "SIGALRM", "alarm", "setitimer"},
    "socket": {"AF_UNIX"},
}


def run_by_an_import(node):
    """Yield all nodes but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            parts = [*getattr(child, "decorator_list", ()), *child.args.defaults, *filter(None, child.args.kw_defaults)]
            for part in parts:
                yield from (part, *run_by_an_import(part))
        else:
            yield from (child, *run_by_an_import(child))


def needs_posix(node):
    if isinstance(node, ast.Import):
        return bool({alias.name for alias in node.names} & MODULES)
    if isinstance(node, ast.ImportFrom):
        return node.module in MODULES or bool({alias.name for alias in node.names} & MISSING.get(node.module, set()))
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in MISSING.get(node.value.id, ())
    )


@pytest.mark.repository
def test_every_module_can_be_imported_without_what_windows_lacks():
    paths = [path for folder in ("shardgym", "baselines", "neuroshard") for path in (ROOT / folder).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    assert any(needs_posix(node) for tree in trees.values() for node in ast.walk(tree))  # inside of functions
    found = [(path.name, node.lineno) for path in paths for node in run_by_an_import(trees[path]) if needs_posix(node)]
    assert found == []


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_measuring_elsewhere_is_one_clear_line(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(MeasurementError, match=rf"measuring needs Linux, this is {platform}: .*'roofline'"):
        FbgemmCost()
