"""Say what solvers can gain on the tasks of a suite: `python tools/separation.py SUITE ...`.

For every task it looks for the best plan with several searches, by the suite's simulated oracle, and compares it with
three others: what longest processing time first makes of predicted single-table times, the best plan without cuts, and
the best plan where memory is unlimited. One row per task goes to `benchmarks/separation/SUITE.csv`;
`python tools/fill_pages.py` makes the tables of leaderboards/README.md of these files.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from baselines.column_greedy import merged, place_with_cuts, whole_tables
from baselines.lpt import alone_ms
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import UNFAMILIAR, PlanCost
from shardgym.errors import NO_PLAN, NoFeasiblePlanError, ShardGymError
from shardgym.plan import ShardingPlan
from shardgym.shard import COLUMN_UNIT, Shard
from shardgym.solver import make_solver
from shardgym.suites import Suite, load_suite
from shardgym.suites.sources import DrawnSource
from shardgym.task import ShardingTask

DATA = Path(__file__).parents[1] / "benchmarks" / "separation"

#: Searches for the best plan: solver, settings, seed.
SEARCHES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("lpt", {}, 0),
    ("column_greedy", {}, 0),
    ("local_search", {"splits": False}, 0),
    ("neuroshard_plus", {}, 0),
)
#: The same where memory is unlimited.
ROOMY_SEARCHES = (("neuroshard_plus", {}, 0),)
_UNLIMITED = 2**50


class Separation(NamedTuple):
    """What searches find on one task; times in ms by the oracle, unless a judge is named.

    Attributes:
        index: of the task in its suite.
        group: of the task.
        tables: of the task.
        lpt_ms: longest processing time first on single-table times, the largest tables halved where whole ones do not
            fit; infinite where that leads to no plan.
        lpt_cuts: whether it had to halve tables.
        best_ms: the best plan that any search found.
        solver: which search.
        busiest_ms: what the device that computes longest computes in that plan.
        mean_ms: what a device computes in it on average.
        whole_ms: the best plan without cuts; infinite where none was found.
        roomy_ms: the best plan where memory is unlimited.
        lpt_judge_ms: by the judge, the plan of `lpt_ms`; infinite likewise.
        best_judge_ms: by the judge, the plan of `best_ms`.
    """

    index: int
    group: str
    tables: int
    lpt_ms: float
    lpt_cuts: bool
    best_ms: float
    solver: str
    busiest_ms: float
    mean_ms: float
    whole_ms: float
    roomy_ms: float
    lpt_judge_ms: float
    best_judge_ms: float


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="names of suites with a simulated track")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first tasks, and print instead of writing")
    options = parser.parse_args(arguments)
    try:
        for suite in map(load_suite, options.suites):
            oracle, judge = predicted_costs(suite)
            tasks = tqdm(range(len(suite))[: options.limit], desc=suite.name, unit="task", disable=None)
            found = [separation(suite[n], oracle, judge, n, suite.group(n)) for n in tasks]
            if options.limit is None:
                write(found, DATA / f"{suite.name}.csv")
            print(f"{suite.name}\n\n{table(found, draws_looked_at(suite))}\n")
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def predicted_costs(suite: Suite) -> tuple[CostModel, CostModel]:
    """Return oracle and judge of a suite's track that measures nothing."""
    track = suite.tracks[-1]
    return make_cost(track.oracle.cost, **track.oracle.settings), make_cost(track.judge.cost, **track.judge.settings)


def separation(task: ShardingTask, oracle: CostModel, judge: CostModel, index: int = 0, group: str = "") -> Separation:
    """Search for all plans that are compared.

    Raises:
        NoFeasiblePlanError: no search finds a plan.
    """
    found = [(f"{name}", plan, cost) for name, plan, cost in search(task, oracle, SEARCHES)]
    if not found:
        raise NoFeasiblePlanError(f"{task.name}: no search finds a plan")
    solver, best, best_cost = min(found, key=lambda entry: entry[2].total_ms)
    whole = [cost.total_ms for _, plan, cost in found if len(plan.shards) == task.num_tables]
    rule = lpt(task, oracle)
    rule_ms = rule_judge_ms = float("inf")
    if rule is not None:
        rule_ms = oracle.evaluate(task, [rule])[0].total_ms
        rule_judge_ms = judge.evaluate(task, [rule])[0].total_ms
    topology = dataclasses.replace(task.topology, memory_bytes=(_UNLIMITED,) * task.num_devices)
    roomy = search(dataclasses.replace(task, topology=topology), oracle, ROOMY_SEARCHES)
    return Separation(
        index=index,
        group=group,
        tables=task.num_tables,
        lpt_ms=rule_ms,
        lpt_cuts=rule is not None and len(rule.shards) > task.num_tables,
        best_ms=best_cost.total_ms,
        solver=solver,
        busiest_ms=float(best_cost.compute_ms.max()),
        mean_ms=float(best_cost.compute_ms.mean()),
        whole_ms=min(whole, default=float("inf")),
        roomy_ms=min(best_cost.total_ms, *(cost.total_ms for _, _, cost in roomy)),
        lpt_judge_ms=rule_judge_ms,
        best_judge_ms=judge.evaluate(task, [best])[0].total_ms,
    )


def search(
    task: ShardingTask, oracle: CostModel, searches: tuple[tuple[str, dict[str, Any], int], ...]
) -> list[tuple[str, ShardingPlan, PlanCost]]:
    """Return the plan of every search that finds one, and its cost by the oracle."""
    found = []
    for name, settings, seed in searches:
        try:
            plan = make_solver(name, **settings).solve(task, oracle, seed)
        except NO_PLAN:
            continue
        found.append((name, plan, oracle.evaluate(task, [plan])[0]))
    return found


def lpt(task: ShardingTask, oracle: CostModel) -> ShardingPlan | None:
    """Return the plan by single-table times, largest first; None where halving tables leads to no plan either."""
    try:
        return merged(task, place_with_cuts(task, oracle, whole_tables(task, oracle))[1])
    except NoFeasiblePlanError:
        return None


def is_bound_by_a_table(task: ShardingTask, oracle: CostModel) -> bool:
    """Say whether the narrowest shard of some table takes longer, alone, than an even share of all tables."""
    whole = alone_ms(task, oracle, [Shard.whole(table, 0) for table in task.tables])
    narrow = [Shard(table.name, (0, table.num_embeddings), (0, COLUMN_UNIT), 0) for table in task.tables]
    return bool(alone_ms(task, oracle, narrow).max() > whole.sum() / task.num_devices)


def is_familiar(cost: PlanCost) -> bool:
    """Say whether a plan is inside of what the simulator was trained on."""
    return not any(note.startswith(UNFAMILIAR) for note in cost.notes)


def write(found: list[Separation], path: Path) -> None:
    """Write one row per task."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Separation._fields)
        rows.writerows([f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in found)


def read(path: Path) -> list[Separation]:
    """Read what `write` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Separation(
                int(row["index"]), row["group"], int(row["tables"]), float(row["lpt_ms"]), row["lpt_cuts"] == "True",
                float(row["best_ms"]), row["solver"], *(float(row[name]) for name in Separation._fields[7:]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


def draws_looked_at(suite: Suite) -> dict[str, int]:
    """Return how many draws of each group were looked at to find its tasks, by name; none where nothing was chosen."""
    groups = suite.source.spec.groups if isinstance(suite.source, DrawnSource) else ()
    return {group.name: group.draws[-1] + 1 for group in groups if group.draws}


def table(found: list[Separation], draws: Mapping[str, int]) -> str:
    """Return the table of a suite in Markdown, one row per group and one for all.

    Args:
        found: one per task.
        draws: of `draws_looked_at`.
    """
    groups = list(dict.fromkeys(row.group for row in found))
    parts = [(group, [row for row in found if row.group == group], draws.get(group)) for group in groups]
    rows = [_row(name, part, count) for name, part, count in (*parts, ("all", found, sum(draws.values()) or None))]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, stralign="right")


def _row(name: str, part: list[Separation], draws: int | None) -> dict[str, str]:
    solved = [row for row in part if np.isfinite(row.lpt_ms)]
    whole = [row for row in part if np.isfinite(row.whole_ms)]
    by_oracle = [row.lpt_ms / row.best_ms for row in solved]
    by_judge = [row.lpt_judge_ms / row.best_judge_ms for row in solved]
    counts = [row.tables for row in part]
    cuts = _mean([row.whole_ms / row.best_ms for row in whole])
    return {
        "group": name,
        "tasks": str(len(part)) if draws is None else f"{len(part)} of {draws} draws",
        "tables": f"{min(counts)}-{max(counts)}",
        "LPT over best": f"{_mean(by_oracle)} ({_least(by_oracle)})",
        "by the judge": f"{_mean(by_judge)} ({_least(by_judge)})",
        "LPT cuts / fails": f"{sum(row.lpt_cuts for row in solved)} / {len(part) - len(solved)}",
        "gap to balance": _mean([row.busiest_ms / row.mean_ms for row in part]),
        "cuts are worth": f"{cuts} ({len(part) - len(whole)} need them)",
        "memory is worth": _mean([row.best_ms / row.roomy_ms for row in part]),
    }


def _mean(ratios: list[float]) -> str:
    """Return the geometric mean of ratios, less 1, in per cent."""
    return f"{np.exp(np.mean(np.log(ratios))) - 1:.1%}" if ratios else "-"


def _least(ratios: list[float]) -> str:
    return f"least {min(ratios) - 1:.1%}" if ratios else "none"


if __name__ == "__main__":
    sys.exit(main())
