"""The package as a whole: what an import loads."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shardgym

HEAVY = ("torch", "fbgemm_gpu", "stable_baselines3", "scipy", "pandas", "pyarrow", "matplotlib")


CODES = (
    "import shardgym; shardgym.load_pool('synthetic-2021'); shardgym.load_suite('tiny-v1')[0]",
    "import shardgym.machine; shardgym.machine.versions(); shardgym.read_results",
    "shardgym.make_cost('simulator')",
    "from shardgym.cli import main; main(['--help']); main(['run', '--help']); main(['list', 'suites'])",
    "main(['list', 'solvers'])",
)


def test_nothing_heavy_is_imported_before_it_is_used():
    """Half a second for `import shardgym` and the command line allows for neither torch nor fbgemm."""
    probe = f"import sys\nfor code in {CODES!r}:\n    exec(code)\n    print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == ["[]"] * len(CODES)


def test_every_public_name_can_be_imported_and_no_other():
    assert all(getattr(shardgym, name) is not None for name in shardgym.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        shardgym.nonsense  # noqa: B018


@pytest.mark.repository
def test_every_package_that_is_imported_is_declared():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    declared = {re.split(r"[<>=~!\[ ]", line)[0].replace("-", "_") for line in [*project["dependencies"], *extras]}
    other_names = {"yaml": "pyyaml", "pydantic_core": "pydantic", "PIL": "pillow", "fbgemm_gpu": "fbgemm_gpu_cpu"}
    imported = set()
    for package in ("shardgym", "baselines", "neuroshard"):
        for file in (root / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    imported.add(node.module.partition(".")[0])
    apart = {"torchrec"}  # asks for FBGEMM's CUDA wheel, so it is installed by hand without what it requires
    foreign = imported - sys.stdlib_module_names - {"shardgym", "baselines", "neuroshard"} - apart
    assert "numpy" in foreign
    assert {name for name in foreign if other_names.get(name, name) not in declared} == set()
