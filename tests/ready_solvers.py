"""Registered solvers for sweeps that let every one solve something."""

import pytest

from baselines.learning.solver import LearnedSolver
from baselines.learning.weights import shipped_weights
from shardgym import make_solver


def make_ready(name):
    """Make a solver; skip the test when it is a learned one whose weights do not ship yet."""
    solver = make_solver(name)
    if isinstance(solver, LearnedSolver) and not shipped_weights(name):
        pytest.skip(f"no weights of {name} ship yet")
    return solver
