"""Names: registered ones, one's own, and helpful answers to the rest."""

import sys
from importlib.metadata import EntryPoint

import pytest

from shardgym import InputError, ShardingPlan, make_cost, make_solver
from shardgym.evaluation.solver import GROUP, call_solver
from shardgym.registry import registered


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of one's own in the current folder, not installed."""
    (tmp_path / "own_solvers.py").write_text(
        "from abc import ABC, abstractmethod\n"
        "from shardgym import ShardingPlan\n"
        "class First:\n"
        "    def __init__(self, device=0): self.device = device\n"
        "    def solve(self, task, cost, seed=0):\n"
        "        return ShardingPlan.table_wise(task, [self.device] * task.num_tables)\n"
        "class NoSolver: pass\n"
        "class Abstract(ABC):\n"
        "    @abstractmethod\n"
        "    def solve(self, task, cost, seed=0): ...\n"
        "class Needs:\n"
        "    def __init__(self, steps): ...\n"
        "def function(task, cost, seed=0): ...\n"
        "made = Needs(3)\n"
    )
    (tmp_path / "broken_module.py").write_text("import does_not_exist\n")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_solvers", None)


def test_a_class_in_the_current_folder_is_a_solver(own_module, toy_task):
    solver = make_solver("own_solvers:First", device=1)
    plan = call_solver(solver, toy_task, make_cost("roofline"), seed=3, time_limit_s=1.0, initial_plan=None)
    assert plan == ShardingPlan.table_wise(toy_task, [1, 1, 1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dim_gredy", "unknown solver 'dim_gredy': did you mean dim_greedy"),
        ("my_solver", "unknown solver 'my_solver': .*; or give module:Class for your own"),
        ("own_solvers:Frist", r"module 'own_solvers' has no 'Frist': did you mean First\?"),
        ("broken_module:First", "import 'broken_module': ModuleNotFoundError: No module named 'does_not_exist'$"),
        ("nowhere:First", "No module named 'nowhere' in the current folder and on Python's path$"),
        ("nowhere/own.py:First", "'nowhere/own' in .*; write 'nowhere.own:First'$"),
        ("own_solvers:NoSolver", r"has no method solve\(task, cost, seed\)"),
        ("own_solvers:Abstract", "does not accept settings {}: Can't instantiate abstract class Abstract"),
        ("own_solvers:function", "solver 'own_solvers:function' is a function: expected a class"),
        ("own_solvers:made", "solver 'own_solvers:made' is a Needs: expected a class"),
        ("own_solvers:Needs", "solver 'own_solvers:Needs' does not accept settings {}: .*missing 1 .*'steps'"),
    ],
)
def test_a_name_that_is_no_solver_is_answered_in_one_line(own_module, name: str, message: str):
    with pytest.raises(InputError, match=message):
        make_solver(name)


def test_two_packages_cannot_register_one_name(monkeypatch):
    entries = [EntryPoint("lpt", f"{package}:Lpt", GROUP) for package in ("baselines.lpt", "theirs", "baselines.lpt")]
    monkeypatch.setattr("shardgym.registry.entry_points", lambda group: entries)
    with pytest.raises(InputError, match=r"'lpt' twice, as baselines\.lpt:Lpt and theirs:Lpt: rename or uninstall one"):
        make_solver("lpt")
    monkeypatch.setattr("shardgym.registry.entry_points", lambda group: entries[::2])
    assert registered(GROUP) == {"lpt": "baselines.lpt:Lpt"}


def test_settings_that_a_class_does_not_take_are_refused(own_module):
    with pytest.raises(InputError, match="has no setting 'devices': did you mean device"):
        make_solver("own_solvers:First", devices=1)
    with pytest.raises(InputError, match="unknown cost 'rofline': did you mean roofline"):
        make_cost("rofline")
