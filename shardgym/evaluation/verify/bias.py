"""The rule for a solver: its measured costs must not all be off in the same direction.

A plan's own tolerance is wide, so a solver could be flattered a little on every task. Over many tasks that shows.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardgym.evaluation.verify.checked import Checked

# The 10 tasks of quick-v1 measured again three times, on machines with other work: means of 7 honest solvers 0.003 to
# 0.06 from zero, the largest on a machine of the same tag that took 1.2 times as long; scatter over tasks 0.02 to 0.05.
#: A solver is judged by at least so many tasks that were measured again.
MIN_TASKS = 5
#: Stored costs that are lower than the new ones by this share on average, or higher by the inverse factor, are doubted,
DOUBT = 0.05
#: ... and refused from this share on,
BIAS = 0.08
#: ... if the mean is also so many standard errors away from zero. How much tasks scatter, the other solvers say: one
#: that is flattered on some tasks alone brings scatter of its own.
STANDARD_ERRORS = 4
#: However much they scatter, more than this share is too much.
MOST = 0.12


def biased_solvers(rows: Iterable[Checked]) -> list[str]:
    """Return a line for every file and solver whose costs are off by more than is allowed, on average over tasks."""
    return [line for line, share in _lines(rows) if share > BIAS]


def doubted_solvers(rows: Iterable[Checked]) -> list[str]:
    """Return a line for every file and solver that is off by less, as flattery or another machine can make it."""
    return [f"{line}: flattered, or a machine that differs" for line, share in _lines(rows) if share <= BIAS]


def consistent_bias(logs: Sequence[float], scatters: Sequence[float] = ()) -> float | None:
    """Return the mean of log(new / stored / drift) of a solver if it is too far from zero; else None.

    Args:
        logs: one value per task.
        scatters: standard deviations of the other solvers' logs; without any the solver's own counts.
    """
    if len(logs) < MIN_TASKS:
        return None
    mean = statistics.fmean(logs)
    error = (statistics.median(scatters) if scatters else statistics.stdev(logs)) / math.sqrt(len(logs))
    bound = max(-math.log1p(-DOUBT), min(STANDARD_ERRORS * error, -math.log1p(-MOST)))
    return mean if abs(mean) > bound else None


def _lines(rows: Iterable[Checked]) -> Iterator[tuple[str, float]]:
    """Yield what to say of every solver that is off, and by which share."""
    for file, solvers in _logs(rows).items():
        scatters = {name: statistics.stdev(logs) for name, logs in solvers.items() if len(logs) >= MIN_TASKS}
        for name, logs in solvers.items():
            mean = consistent_bias(logs, [scatter for other, scatter in scatters.items() if other != name])
            if mean is not None:
                way = f"{100 * abs(math.expm1(-mean)):.0f} % {'cheaper' if mean > 0 else 'dearer'}"
                over = f"over {len(logs)} tasks of {file}"
                yield f"{name} is consistently {way} in the records than now, {over}", -math.expm1(-abs(mean))


def _logs(rows: Iterable[Checked]) -> Mapping[str, Mapping[str, list[float]]]:
    """Return by file and solver, for each task that was measured again, the mean over seeds of the log."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.relative is not None and row.task_index is not None:
            found[(row.file, row.solver)][row.task_index].append(math.log(row.relative))
    logs: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for (file, solver), tasks in found.items():
        logs[file][solver] = [statistics.fmean(seeds) for seeds in tasks.values()]
    return logs
