"""Cores, memory and extras, asked of the system without importing anything heavy."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

#: Extras that are for working on ShardGym, not for using it.
_OWN_EXTRAS = frozenset({"dev"})
#: The GPU wheels of FBGEMM replace the CPU ones.
_ALTERNATIVES = frozenset({"cpu", "gpu"})

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """Return the memory of the machine, or of the container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def extras() -> dict[str, list[str]]:
    """Return, per extra of `shardgym`, the distributions that it names and that are not installed."""
    missing: dict[str, list[str]] = {}
    for requirement in distribution("shardgym").requires or ():
        match = re.fullmatch(r"([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*['\"]([^'\"]+)['\"].*", requirement)
        if match and match[2] not in _OWN_EXTRAS:
            missing.setdefault(match[2], []).extend([] if _is_installed(match[1]) else [match[1]])
    return missing


def missing_extras() -> list[str]:
    """Return the extras that lack a distribution; of `cpu` and `gpu`, one is enough."""
    lacking = [name for name, names in extras().items() if names]
    has_fbgemm = bool(_ALTERNATIVES - set(lacking))
    return [name for name in lacking if not (has_fbgemm and name in _ALTERNATIVES)]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
