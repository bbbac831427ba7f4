"""Mixed-integer linear programs, built constraint by constraint and solved by HiGHS."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from shardgym.arrays import Floats


class Sum:
    """A linear expression: variable numbers with factors. A variable is an expression with one term."""

    def __init__(self, terms: Iterable[tuple[int, float]] = ()) -> None:
        self.terms = list(terms)

    @classmethod
    def of(cls, sums: Iterable[Sum]) -> Sum:
        """Return the sum of several expressions."""
        return cls(itertools.chain.from_iterable(each.terms for each in sums))

    @property
    def number(self) -> int:
        """Number of the only variable."""
        [(number, _)] = self.terms
        return number

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.terms + other.terms)

    def __iadd__(self, other: Sum) -> Self:
        self.terms += other.terms
        return self

    def __sub__(self, other: Sum) -> Sum:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Sum:
        return Sum([(number, own * factor) for number, own in self.terms])

    def __truediv__(self, divisor: float) -> Sum:
        return Sum([(number, own / divisor) for number, own in self.terms])


class Solution(NamedTuple):
    """A solution by HiGHS."""

    bound: float  #: no solution has a smaller objective; infinite where there is no solution
    values: Floats | None  #: of all variables; None where no solution was found


@contextlib.contextmanager
def _without_stdout() -> Iterator[None]:
    """Keep a line that the C code of HiGHS prints, in SciPy 1.17, off standard output, where commands print JSON."""
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
    """A program of continuous and integer variables with linear constraints."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[int] = []
        self._rows: list[tuple[Sequence[tuple[int, float]], float, float]] = []

    def variable(self, upper: float = np.inf, lower: float = 0.0, *, whole: bool = False) -> Sum:
        """Add a variable."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._whole.append(int(whole))
        return Sum([(len(self._upper) - 1, 1.0)])

    def flag(self) -> Sum:
        """Add a binary variable."""
        return self.variable(1, whole=True)

    def upper(self, number: int) -> float:
        """Return the upper bound of a variable."""
        return self._upper[number]

    def at_most(self, terms: Sum, limit: float | Sum = 0.0) -> None:
        """Add the constraint terms <= limit."""
        if isinstance(limit, Sum):
            terms = terms - limit
            limit = 0.0
        self._add(terms, -np.inf, limit)

    def at_least(self, terms: Sum, limit: Sum) -> None:
        """Add the constraint terms >= limit."""
        self._add(terms - limit, 0.0, np.inf)

    def equal(self, terms: Sum, value: float | Sum = 0.0) -> None:
        """Add the constraint terms == value."""
        if isinstance(value, Sum):
            terms = terms - value
            value = 0.0
        self._add(terms, value, value)

    def _add(self, terms: Sum, low: float, high: float) -> None:
        self._rows.append(([term for term in terms.terms if term[1]], low, high))

    def minimise(
        self, objective: Sum, *, gap: float = 0.0, ranges: Mapping[int, tuple[float, float]] | None = None,
        nodes: int = 1, time_limit_s: float = np.inf,
    ) -> Solution:  # fmt: skip
        """Run HiGHS.

        Args:
            objective: the variable to minimise.
            gap: relative gap at which HiGHS may stop.
            ranges: lower and upper bounds that replace those of some variables, by number.
            nodes: maximum number of nodes of the search tree.
            time_limit_s: time limit; results then depend on the machine.
        """
        lower, upper = np.array(self._lower), np.array(self._upper)
        for variable, (least, most) in (ranges or {}).items():
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
        costs[objective.number] = 1.0
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
