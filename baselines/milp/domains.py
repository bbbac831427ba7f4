"""Which domain holds which of the tables that single domains have by rows: so that no domain has much more than others.

A step takes the slowest domain's compute and what it sends to others, and in the exchange inside of domains the columns
of the widest one. Programs bound these by averages; this is a search for domains that come near to them.
"""

from __future__ import annotations

import numpy as np

from baselines.milp.exchanges import Exchanges
from baselines.milp.kinds import Spread
from shardgym.arrays import Floats, Ints
from shardgym.ties import quantized

#: The largest of several loads is nearly the 32nd root of their added 32nd powers, in which the second largest counts,
#: too; a second descent has 128th powers, which are nearer. Powers are made by squaring so often.
_SQUARINGS = 5, 7
#: Changes of a descent at most, for each table.
_CHANGES_PER_TABLE = 8
#: A change has to bring more than this share.
_LEAST_GAIN = 1e-6


def domain_loads(spread: Spread, exchanges: Exchanges) -> Floats:
    """Return what a table brings to the domain that holds it, in ms, of each the largest counts, shape (3,).

    That is what its devices compute and send first, the same at last, and what all devices wait for inside of domains.
    """
    sent_ms = exchanges.transfers * exchanges.sent * spread.columns
    inside_ms = exchanges.transfers.sum() * exchanges.inside.unit_ms * spread.columns
    return np.array([*(spread.ms.max(axis=0) + sent_ms), inside_ms])


def packed(loads: Floats, base: Floats) -> Ints:
    """Return the domain of each table, shape (T,).

    The largest tables come first, each to where the sum of the largest loads stays least. Then tables move and swap
    domains as long as that helps.

    Args:
        loads: of tables, `domain_loads`, shape (T, 3).
        base: what each domain has besides, shape (N, 3).
    """
    # An even share is 1, which keeps powers within range.
    unit = max(float((loads.sum(axis=0) / len(base) + base.max(axis=0)).max()), 1e-12)
    loads, sums = loads / unit, base / unit
    first = _SQUARINGS[0]
    found = np.zeros(len(loads), dtype=np.int64)
    order = sorted(range(len(loads)), key=lambda n: (-float(loads[n].sum()), n))
    for table in order:
        changed = sums + loads[table]
        others = _powers(sums, first).sum(axis=0) - _powers(sums, first)
        domain = int(quantized(_largest(others + _powers(changed, first), first)).argmin())
        found[table] = domain
        sums[domain] += loads[table]
    for squarings in _SQUARINGS:
        unit = max(float(sums.max()), 1e-12)
        loads, sums = loads / unit, sums / unit
        _descend(loads, sums, found, squarings)
    return found


def _descend(loads: Floats, sums: Floats, found: Ints, squarings: int) -> None:
    """Move and swap tables as long as that helps; changes `sums`, those of domains, and `found`."""
    tables, domains = len(loads), len(sums)
    for _ in range(_CHANGES_PER_TABLE * tables):
        powers = _powers(sums, squarings)
        total = powers.sum(axis=0)
        now = float(_largest(total, squarings))
        own = sums[found]
        # Moves, shape (T, N, 3), and swaps, (T, T, 3).
        kept = total - powers[found][:, None] - powers[None]
        given, taken = _powers(own - loads, squarings), _powers(sums[None] + loads[:, None], squarings)
        moved = _largest(kept + given[:, None] + taken, squarings)
        moved[np.arange(tables), found] = np.inf
        kept = total - powers[found][:, None] - powers[found][None]
        more = loads[None] - loads[:, None]
        given, taken = _powers(own[:, None] + more, squarings), _powers(own[None] - more, squarings)
        swapped = _largest(kept + given + taken, squarings)
        swapped[found[:, None] == found[None]] = np.inf
        after = quantized(np.concatenate([moved.ravel(), swapped.ravel()]))
        best = int(after.argmin())
        if after[best] >= now * (1 - _LEAST_GAIN):
            break
        if best < tables * domains:
            one, domain = divmod(best, domains)
            changes = [(one, domain)]
        else:
            one, other = divmod(best - tables * domains, tables)
            changes = [(one, int(found[other])), (other, int(found[one]))]
        for table, domain in changes:
            sums[found[table]] -= loads[table]
            sums[domain] += loads[table]
            found[table] = domain


def _powers(values: Floats, squarings: int) -> Floats:
    """Return values squared so often; of what rounding has made negative, 0."""
    powers: Floats = np.maximum(values, 0.0)
    for _ in range(squarings):
        powers = powers * powers
    return powers


def _largest(powers: Floats, squarings: int) -> Floats:
    """Return the sum of the largest loads from added powers, shape (..., 3)."""
    return np.asarray((np.maximum(powers, 0.0) ** (1 / 2**squarings)).sum(axis=-1), dtype=np.float64)
