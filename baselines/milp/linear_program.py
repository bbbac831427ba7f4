"""Mixed-integer linear programs, put together constraint by constraint and solved by HiGHS."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from shardgym.arrays import Floats

#: A sum: variables and their factors.
Terms = list[tuple[int, float]]


class Solution(NamedTuple):
    """What HiGHS found.

    Attributes:
        bound: no solution has a smaller objective; infinite where there is no solution.
        values: of all variables; None where no solution was found.
    """

    bound: float
    values: Floats | None


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    """Keep what HiGHS prints in spite of `disp=False` off standard output, where commands print JSON.

    It is a line of `HighsMipSolverData::transformNewIntegerFeasibleSolution`, in the HiGHS of SciPy 1.17. C code prints
    it, so `contextlib.redirect_stdout` does not see it.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
        ctypes.CDLL(None).fflush(None)
    finally:
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)


class LinearProgram:
    """Variables from 0 on, some of them whole numbers, and limits of sums of them."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[int] = []
        self._rows: list[tuple[Sequence[tuple[int, float]], float, float]] = []

    @property
    def num_variables(self) -> int:
        """How many variables there are."""
        return len(self._upper)

    def variable(self, upper: float = np.inf, lower: float = 0.0, *, whole: bool = False) -> int:
        """Add a variable and return its number."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._whole.append(int(whole))
        return len(self._upper) - 1

    def flag(self) -> int:
        """Add a variable that is 0 or 1."""
        return self.variable(1, whole=True)

    def upper(self, variable: int) -> float:
        """Return the largest value of a variable."""
        return self._upper[variable]

    def at_most(self, terms: Sequence[tuple[int, float]], limit: float = 0.0) -> None:
        """Add the constraint that a sum is at most a limit."""
        self.between(terms, -np.inf, limit)

    def between(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        """Add the constraint that a sum is in a range."""
        self._rows.append(([(variable, factor) for variable, factor in terms if factor], low, high))

    def minimise(
        self, objective: int, *, gap: float, ranges: Mapping[int, tuple[float, float]], nodes: int, time_limit_s: float
    ) -> Solution:
        """Run HiGHS.

        Args:
            objective: the variable to minimise.
            gap: relative gap at which it may stop.
            ranges: of some variables, instead of theirs.
            nodes: of the search tree at most.
            time_limit_s: likewise, which makes results depend on the machine.
        """
        lower, upper = np.array(self._lower), np.array(self._upper)
        for variable, (least, most) in ranges.items():
            lower[variable], upper[variable] = least, most
        lengths = [len(terms) for terms, _, _ in self._rows]
        places = np.repeat(np.arange(len(lengths)), lengths)
        columns = np.array([variable for terms, _, _ in self._rows for variable, _ in terms])
        factors = np.array([factor for terms, _, _ in self._rows for _, factor in terms])
        matrix = csr_array((factors, (places, columns)), shape=(len(lengths), len(upper)))
        constraints = LinearConstraint(
            matrix, np.array([low for _, low, _ in self._rows]), np.array([high for *_, high in self._rows])
        )
        costs = np.zeros(len(upper))
        costs[objective] = 1.0
        options = {"mip_rel_gap": gap, "node_limit": nodes, "time_limit": min(time_limit_s, 1e7)}
        with _without_stdout():
            found = milp(
                costs, integrality=np.array(self._whole), bounds=Bounds(lower, upper), constraints=constraints,
                options=options,
            )  # fmt: skip
        if found.status == 2:
            return Solution(np.inf, None)
        # Without whole numbers there is no tree with a bound of its own: the optimum is the bound.
        bound = found.mip_dual_bound if any(self._whole) else (found.fun if found.status == 0 else None)
        return Solution(float(bound) if bound is not None and np.isfinite(bound) else 0.0, found.x)
