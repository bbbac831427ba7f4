"""What this machine has: cores that may be used, memory that is free, and a name for its processor."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path


def usable_cores() -> list[int]:
    """Return the cores this process may run on, sorted."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cpu_tag() -> str:
    """Return the hardware tag of the CPU, e.g. "cpu-amd-epyc-7b12-8c"."""
    return f"cpu-{slug(_cpu_model())}-{len(usable_cores())}c"


def slug(name: str) -> str:
    """Return a name in lower case with dashes, without trademarks, clock rates and filler words."""
    plain = re.sub(r"\((r|tm)\)|@.*|\bcpu\b|\bprocessor\b|\b\d+-core\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes can still be allocated on this machine, or under the limit of the container."""
    return min([_mem_available(proc), *_cgroup_rooms(proc, cgroups)])


def _mem_available(proc: Path) -> int:
    text = (proc / "meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, "the kernel reports MemAvailable since 3.14"
    return int(found.group(1)) * 1024


def _cgroup_rooms(proc: Path, root: Path) -> Iterator[int]:
    """Yield limit minus use of this process's memory group and of the groups around it, version 1 and 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            names = ("memory.max", "memory.current") if not controllers else _V1_FILES
            here = Path(path.lstrip("/"))
            for group in [here, *here.parents]:
                yield from _room(root / controllers / group, *names)


_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _room(folder: Path, limit: str, used: str) -> Iterator[int]:
    try:
        values = [(folder / name).read_text(encoding="ascii").strip() for name in (limit, used)]
    except OSError:
        return
    if all(value.isdigit() for value in values):
        yield max(0, int(values[0]) - int(values[1]))
