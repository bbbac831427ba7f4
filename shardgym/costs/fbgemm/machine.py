"""What this machine has: cores that may be used, memory that is free, and the hardware tag of both."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from shardgym.provenance import processor


def usable_cores() -> list[int]:
    """Return the cores this process may run on, sorted."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cpu_tag() -> str:
    """Return the hardware tag of the CPU, e.g. "cpu-amd-family25-model17-avx512-8c": `processor`, and usable cores."""
    return f"cpu-{processor()}-{len(usable_cores())}c"


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes can still be allocated on this machine, or under the limit of the container."""
    meminfo = (proc / "meminfo").read_text(encoding="ascii")
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    assert found is not None, "the kernel reports MemAvailable since 3.14"
    available = [int(found.group(1)) * 1024]
    for group, limit_file, used_file in _memory_groups(proc, cgroups):
        try:
            limit = (group / limit_file).read_text(encoding="ascii").strip()
            used = (group / used_file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit() and used.isdigit():
            available.append(max(0, int(limit) - int(used)))
    return min(available)


def resident_bytes() -> int:
    """Return how many bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _memory_groups(proc: Path, root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield folder, limit file and use file of this process's memory group and of the groups around it."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        here = Path(path.lstrip("/"))
        for group in [here, *here.parents]:
            if controllers == "":  # version 2
                yield root / group, "memory.max", "memory.current"
            elif controllers == "memory":  # version 1
                yield root / controllers / group, "memory.limit_in_bytes", "memory.usage_in_bytes"
