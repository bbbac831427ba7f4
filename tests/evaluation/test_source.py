"""Which files a solver is written in."""

from __future__ import annotations

import sys
import types

import pytest

from shardgym.evaluation.solver_spec import RULE, source_digest, source_files
from shardgym.registry import find_class
from shardgym.solver import GROUP

PACKAGE = {
    "__init__.py": "",
    "solver.py": """
import os, mine_pkg.direct as d
from .search import (
    moves,  # a comment (of two)
    Kick,
)
class Mine: pass
""",
    "direct.py": "from json import loads\n",
    "search/__init__.py": "from ..late import x\n",
    "search/moves.py": "def f():\n    from mine_pkg import deep\n",
    "late.py": "from .unknown import nothing\nx = 1\n",
    "deep.py": "",
    "apart.py": "from .solver import Mine\n",
}


@pytest.fixture
def package(tmp_path):
    """A guest's package of eight files, one of which its solver does not import."""
    for name, text in PACKAGE.items():
        path = tmp_path / "mine_pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "json.py").write_text("")
    return tmp_path / "mine_pkg"


def stub(module, path, monkeypatch):
    """A class that says it is of a module, which is not run."""
    made = types.ModuleType(module)
    made.__file__ = str(path)
    monkeypatch.setitem(sys.modules, module, made)
    return type("Mine", (), {"__module__": module})


def test_imports_of_the_same_package_count_wherever_they_stand(package, monkeypatch):
    cls = stub("mine_pkg.solver", package / "solver.py", monkeypatch)
    files = source_files(cls)
    names = ["", ".solver", ".direct", ".search", ".search.moves", ".late", ".deep"]
    assert set(files) == {f"mine_pkg{name}" for name in names}
    before = source_digest(cls)
    assert before.startswith(RULE)
    (package / "apart.py").write_text("another = 1\n")
    (package.parent / "json.py").write_text("another = 1\n")
    assert source_digest(cls) == before
    for name in ("deep.py", "search/__init__.py", "solver.py"):
        (package / name).write_text((package / name).read_text() + "\n# changed\n")
        assert source_digest(cls) != before
        before = source_digest(cls)


def test_the_digest_does_not_depend_on_where_the_files_lie(package, monkeypatch, tmp_path):
    before = source_digest(stub("mine_pkg.solver", package / "solver.py", monkeypatch))
    moved = tmp_path / "elsewhere" / "mine_pkg"
    moved.parent.mkdir()
    package.rename(moved)
    assert source_digest(stub("mine_pkg.solver", moved / "solver.py", monkeypatch)) == before


def test_a_module_outside_of_packages_has_those_beside_it(tmp_path, monkeypatch):
    (tmp_path / "my_mod.py").write_text("import my_helper, numpy\nclass Mine: pass\n")
    (tmp_path / "my_helper.py").write_text("from mine_pkg import x\n")
    (tmp_path / "my_other.py").write_text("")
    assert set(source_files(stub("my_mod", tmp_path / "my_mod.py", monkeypatch))) == {"my_mod", "my_helper"}


def test_classes_of_notebooks_and_of_the_interpreter_have_no_files(monkeypatch, tmp_path):
    assert source_digest(int) == ""
    (tmp_path / "run.py").write_text("")
    assert set(source_files(stub("__main__", tmp_path / "run.py", monkeypatch))) == {"run"}
    assert source_digest(stub("notebook", tmp_path / "gone.py", monkeypatch)) == ""


@pytest.mark.parametrize(
    ("solver", "inside", "outside"),
    [
        ("random", "baselines.random_placement", "baselines.cp_sat"),
        ("neuroshard_plus", "neuroshard.plus.moves", "baselines.greedy"),
    ],
)
def test_solvers_that_ship_are_covered_with_what_they_are_made_of(solver, inside, outside):
    files = source_files(find_class("solver", GROUP, solver))
    assert inside in files
    assert outside not in files
