"""Scripts of benchmarks/ as modules."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # scripts set them at import
    return importlib.import_module
