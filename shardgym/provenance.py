"""Where a result comes from: versions, commit and time. Asks for versions without importing the packages."""

from __future__ import annotations

import functools
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Distributions whose version can change a plan or its cost. The FBGEMM wheels are alternatives.
DISTRIBUTIONS = ("shardgym", "torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "gymnasium")

_GIT_TIMEOUT_S = 20


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of those of `DISTRIBUTIONS` that are installed."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def utc_now() -> str:
    """Return the time in UTC as ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def commit(folder: Path = Path(__file__).parent) -> str:
    """Return the commit of the checkout that tracks `folder`'s Python files.

    Returns:
        The hash, with "+" when tracked files were modified; "" when the folder is not tracked or git is missing.
    """
    # A package that was installed below somebody else's checkout is not tracked by it.
    if not _git(folder, "ls-files", "*.py"):
        return ""
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return ""
    return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; "" when it fails or does not exist."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
