"""The package as a whole: what an import loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shardgym

HEAVY = ("torch", "fbgemm_gpu", "stable_baselines3", "scipy", "pandas")


@pytest.mark.parametrize(
    "code",
    [
        "import shardgym; shardgym.load_pool('synthetic-2021'); shardgym.load_suite('tiny-v1')[0]",
        "import shardgym.cli as c; c.main(['list', 'solvers'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str):
    """Half a second for `import shardgym` and the command line allows for neither torch nor fbgemm."""
    probe = f"{code}\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", shardgym.__all__)
def test_every_public_name_can_be_imported(name: str):
    """The lazy table and the list agree."""
    assert getattr(shardgym, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    """As for any module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        shardgym.nonsense  # noqa: B018
