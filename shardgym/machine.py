"""What a result was made with: versions, processor, cores, memory, commit and time, told without importing packages."""

import functools
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Distributions whose version can change a plan or its cost. The FBGEMM wheels are alternatives.
DISTRIBUTIONS = (
    "shardgym", "torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy", "scipy", "numba", "gymnasium", "torchrec",
)  # fmt: skip

#: Instructions by which FBGEMM chooses its kernels (`src/Utils.cc` there), the widest first, and the flags of each.
_DISPATCHED = {"avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}), "avx2": frozenset({"avx2", "fma"})}
_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}

_GIT_TIMEOUT_S = 20


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python, of the kernel, which exchanges run through, and of those of `DISTRIBUTIONS` installed."""
    kernel = ".".join(platform.release().split(".")[:2])
    found = {"python": platform.python_version(), platform.system().lower(): kernel}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@functools.cache
def arithmetic() -> dict[str, str]:
    """Return what decides how sums are rounded: the processor, and the kernels that BLAS has chosen for it."""
    return {"processor": processor(), "blas": blas_kernels()}


def blas_kernels() -> str:
    """Return the kernels that NumPy's BLAS has chosen."""
    import numpy  # noqa: F401 - so that its BLAS is loaded
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    kernels = {f"{pool['internal_api']} {pool.get('architecture', '')}".strip() for pool in pools}
    return ", ".join(sorted(kernels)) or "unknown"


@functools.cache
def processor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return what tells processors of different generations apart, e.g. "amd-family25-model17-avx512".

    That is vendor, family and model, and the widest instructions that FBGEMM's kernels choose by. Names are no help:
    rented machines call generations of processors alike. Where Linux tells no family, as on ARM, it is the name.

    Args:
        path: file in which Linux describes its processors.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return slug(platform.processor() or platform.machine())
    told = dict(re.findall(r"^([\w ]+?)\s*: *(.*)$", text.partition("\n\n")[0], re.MULTILINE))
    if not {"vendor_id", "cpu family", "model"} <= told.keys():
        return slug(told.get("model name") or platform.machine())
    flags = set(told.get("flags", "").split())
    widest = next((name for name, needed in _DISPATCHED.items() if needed <= flags), "scalar")
    vendor = _VENDORS.get(told["vendor_id"]) or slug(told["vendor_id"])
    return f"{vendor}-family{told['cpu family']}-model{told['model']}-{widest}"


def slug(name: str) -> str:
    """Return a name in lower case with dashes, without trademarks, clock rates and filler words."""
    plain = re.sub(r"\((r|tm)\)|@.*|\bcpu\b|\bprocessor\b|\b\d+-core\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"


def utc_now() -> str:
    """Return the time in UTC as ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@functools.cache
def commit(folder: Path = Path(__file__).parent) -> str:
    """Return the commit of the checkout that tracks `folder`'s Python files.

    Returns:
        The hash, with "+" when tracked files of packages were modified; "" when it is not tracked or git is missing.
    """
    # A package that was installed below somebody else's checkout is not tracked by it.
    if not _git(folder, "ls-files", "*.py"):
        return ""
    head = _git(folder, "rev-parse", "HEAD")
    # Records and pages, which runs and tools write, change no plan.
    code = (":/shardgym", ":/baselines", ":/neuroshard")
    is_modified = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *code)
    return f"{head}+" if head and is_modified else head


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
            # Of files that were read, which count as used, and which the kernel drops when memory is short.
            cached = re.findall(r"inactive_file (\d+)", (group / "memory.stat").read_text(encoding="ascii"))
        except OSError:
            continue
        if limit.isdigit() and used.isdigit():
            available.append(max(0, int(limit) - int(used) + int(cached[-1])))
    return min(available)


def reset_peak_memory(proc: Path = Path("/proc/self")) -> int:
    """Forget the peak of this process's memory so far, and return the bytes that it has in use now."""
    (proc / "clear_refs").write_text("5", encoding="ascii")
    return peak_memory(proc)


def peak_memory(proc: Path = Path("/proc/self")) -> int:
    """Return the most bytes that this process has had in use since `reset_peak_memory`."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", (proc / "status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, "the kernel reports VmHWM of every process"
    return int(found.group(1)) * 1024


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
