"""The rule for a solver: its measured costs must not all be off in the same direction.

A plan's own tolerance is wide, so a solver could be flattered a little on every task. Over many tasks that shows.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from shardgym.evaluation.verify.checked import Checked

# The 10 tasks of quick-v1 measured again once on a machine with other work: means of 7 honest solvers 0.003 to 0.032
# from zero, standard errors 0.005 to 0.018.
#: A solver is judged by at least so many tasks that were measured again.
MIN_TASKS = 5
#: Stored costs may be lower than the new ones by this share on average, or higher by the inverse factor ...
BIAS = 0.05
#: ... and are doubted only if the mean is so many standard errors away from zero.
STANDARD_ERRORS = 4


def biased_solvers(rows: Iterable[Checked]) -> list[str]:
    """Return a line for every file and solver whose costs are consistently cheaper or dearer than measured now."""
    logs: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.relative is not None and row.task_index is not None:
            logs[(row.file, row.solver)][row.task_index].append(math.log(row.relative))
    lines = []
    for (file, solver), tasks in logs.items():
        mean = consistent_bias([statistics.fmean(seeds) for seeds in tasks.values()])
        if mean is not None:
            share = f"{100 * abs(math.expm1(-mean)):.0f} % {'cheaper' if mean > 0 else 'dearer'}"
            lines.append(f"{solver} is consistently {share} in the records than now, over {len(tasks)} tasks of {file}")
    return lines


def consistent_bias(logs: Sequence[float]) -> float | None:
    """Return the mean of log(new / stored / drift), one value per task, if it is too far from zero; else None."""
    if len(logs) < MIN_TASKS:
        return None
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return mean if abs(mean) > max(-math.log1p(-BIAS), STANDARD_ERRORS * error) else None
