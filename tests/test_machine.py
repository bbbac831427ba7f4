"""The commit of the right checkout, memory that is free, tags of hardware."""

import subprocess
import sys

import pytest

from shardgym import machine


def git(folder, *arguments):
    options = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *options, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A repository with a package and records."""
    git(tmp_path, "init")
    for folder in ("shardgym", "leaderboards"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_the_commit_is_that_of_the_packages_own_checkout(checkout):
    clean = machine.commit.__wrapped__(checkout / "shardgym")
    assert len(clean) == 40
    for folder, end in (("leaderboards", ""), ("shardgym", "+")):
        (checkout / folder / "module.py").write_text("x = 2\n")
        assert machine.commit.__wrapped__(checkout / "shardgym") == clean + end
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "module.py").write_text("")
    assert machine.commit.__wrapped__(installed) == ""  # inside of somebody else's


def test_no_checkout_and_no_git_give_no_commit(tmp_path, checkout, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    assert machine.commit.__wrapped__(outside) == ""
    monkeypatch.setenv("PATH", "")
    assert machine.commit.__wrapped__(checkout / "shardgym") == ""


MEMORY = {
    "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n",
    "proc/self/cgroup": "0::/a/b\n",
    "cgroup/a/b/memory.max": "max\n",
    "cgroup/a/b/memory.current": "10\n",
    "cgroup/a/memory.max": "3000\n",
    "cgroup/a/memory.current": "1500\n",
    "cgroup/a/memory.stat": "anon 900\nactive_file 70\ninactive_file 500\nslab 30\n",
}
OLDER = {
    "proc/meminfo": "MemAvailable:    4000 kB\n",
    "proc/self/cgroup": "7:cpu:/\n4:memory:/x\n",
    "cgroup/memory/x/memory.limit_in_bytes": "5000\n",
    "cgroup/memory/x/memory.usage_in_bytes": "6000\n",
    "cgroup/memory/x/memory.stat": "cache 9\ninactive_file 1\ntotal_cache 99\ntotal_inactive_file 300\n",
}


@pytest.mark.parametrize(
    ("files", "count", "available"),
    [(MEMORY, 1, 4000 * 1024), (MEMORY, 4, 4000 * 1024), (MEMORY, 7, 2000), (OLDER, 5, 0)],
)
def test_free_memory_is_that_of_the_machine_or_of_the_tightest_group(tmp_path, files, count, available):
    for name, text in list(files.items())[:count]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.available_bytes(tmp_path / "proc", tmp_path / "cgroup") == available


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("AMD EPYC 7B12 64-Core Processor", "amd-epyc-7b12"),
        ("NVIDIA H200", "nvidia-h200"),
    ],
)
def test_hardware_names_become_tags(name, expected):
    assert machine.slug(name) == expected


AMD = {"vendor_id": "AuthenticAMD", "model name": "AMD EPYC", "flags": "avx2 fma avx512f avx512bw avx512dq avx512vl"}
INTEL = {"vendor_id": "GenuineIntel", "cpu family": 6, "model": 143, "model name": "Intel(R) Xeon(R)"}


@pytest.mark.parametrize(
    ("told", "tag"),
    [
        (AMD | {"cpu family": 26, "model": 2}, "amd-family26-model2-avx512"),
        (AMD | {"cpu family": 25, "model": 17}, "amd-family25-model17-avx512"),
        (INTEL | {"flags": "avx2 fma avx512f"}, "intel-family6-model143-avx2"),
        (INTEL | {"flags": "sse4_2"}, "intel-family6-model143-scalar"),
        ({"model name": "ARM Neoverse-V2", "Features": "sve"}, "arm-neoverse-v2"),
    ],
)
def test_a_processors_tag_names_its_generation_and_the_instructions_that_choose_kernels(tmp_path, told, tag):
    """Two cores, of which Linux says the same."""
    core = "".join(f"{field}\t: {value}\n" for field, value in told.items())
    (tmp_path / "cpuinfo").write_text(f"{core}\n{core}")
    assert machine.processor(tmp_path / "cpuinfo") == tag
    assert machine.processor(tmp_path / "missing")


def test_the_peak_of_memory_is_that_since_it_was_forgotten():
    """In a process of its own, from which nothing else takes memory away meanwhile."""
    code = """
from shardgym import machine
for _ in range(2):
    before = machine.reset_peak_memory()
    held = b"1" * 2**26
    del held
    print((machine.peak_memory() - before) / 2**26)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [float(share) for share in ran.stdout.split()] == pytest.approx([1.0, 1.0], abs=0.1)
