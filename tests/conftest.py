"""A task small enough to work out by hand, shared by all tests, and how runs of one kind of tests start sooner."""

import importlib
import signal
import sys
from pathlib import Path

import pytest

from shardgym import EmbeddingTable, ShardingTask, Topology

# pytest puts this folder in front of the path, where `neuroshard` and `baselines` are folders of tests.
sys.path.remove(str(Path(__file__).parent))
import baselines  # noqa: F401
import neuroshard  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))


# Tests press Ctrl-C, which a shell that starts commands in the background lets them ignore.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m "MARKER and ..."`, files that hold not even the marker's name need not be imported."""
    marker, *others = config.option.markexpr.split() or [""]
    if not marker.isidentifier() or marker == "not" or "or" in others or not collection_path.name.startswith("test_"):
        return None
    return marker not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What only a checkout has is marked. Pages of the documentation come first: they are one file of minutes."""
    for item in items:
        if item.path.parent.name in {"benchmarks", "docs", "examples", "tools"}:
            item.add_marker("repository")
    items.sort(key=lambda item: item.path.name != "test_snippets.py")


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script of `benchmarks/`, `tools/` or `examples/` by its name."""
    for folder in ("benchmarks", "tools", "examples"):
        monkeypatch.syspath_prepend(Path(__file__).parents[1] / folder)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # benchmarks set them at import
    return importlib.import_module


@pytest.fixture
def tool(request, script):
    """The script that the file of a test is named after."""
    return script(request.path.stem.removeprefix("test_").removesuffix("_benchmark"))


@pytest.fixture
def toy_task() -> ShardingTask:
    """Three tables of 10 x 8, 20 x 4 and 5 x 16 FP32 weights (320 bytes each) on two devices of 700 bytes."""
    return ShardingTask(
        tables=(
            EmbeddingTable("wide", 5, 16, pooling_factor=2.0),
            EmbeddingTable("square", 10, 8, pooling_factor=4.0),
            EmbeddingTable("tall", 20, 4, pooling_factor=1.0),
        ),
        topology=Topology(num_devices=2, memory_bytes=700),
        batch_size=4,
        name="toy",
    )
