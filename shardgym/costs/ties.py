"""Ties: numbers that decide are multiples of a quantum, so that rounding decides nothing.

Processors round the same prediction differently: BLAS adds up in other orders, exponentials differ in the last bit. Two
devices that are equal then differ by 1e-15 ms, here this way and there the other way, and a search that compares them
goes its own way from there. So everything that searches and policies compare is rounded to multiples of `QUANTUM`
first. For times that is about a nanosecond.

The quantum is a power of two. So sums and differences of quantized numbers are exact, whatever their order, as long as
they are below 2**33; and what follows from them, such as who waits for nobody, is the same everywhere. Numbers that are
equal then are ties. They are broken by position: the first table, the lowest device, the plan that was found first.

An error of 1e-14 changes a quantized number where it is that near to the middle between two multiples: once in some
hundred million numbers.
"""

import numpy as np

from shardgym.arrays import Floats

#: Of times in ms, and of scores of policies.
QUANTUM = 2.0**-20

#: Significant bits of what linear programs and greedy rules are made of: the same numbers on all processors.
BITS = 30


def quantized(values: float | Floats) -> Floats:
    """Return numbers rounded to multiples of `QUANTUM`; infinite ones stay so."""
    return np.asarray(np.rint(values * (1 / QUANTUM)) * QUANTUM, dtype=np.float64)


def rounded(values: Floats, bits: int) -> Floats:
    """Return numbers rounded to `bits` significant bits, for values that are not times in ms, such as ms per column."""
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits), dtype=np.float64)
