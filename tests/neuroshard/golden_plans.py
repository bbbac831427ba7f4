"""Plans of the solvers on published suites, written down once: what a change of the code must not change.

    python tests/neuroshard/golden_plans.py record                      # writes golden_plans.json
    python tests/neuroshard/golden_plans.py compare [SUITE:TASKS ...]   # says what differs; without parts, anywhere

Searches plan with the simulator, baselines with `roofline`.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path

from shardgym import NoFeasiblePlanError, load_suite, make_cost, make_solver

GOLDEN = Path(__file__).with_name("golden_plans.json")
SUITES = {"dlrm4-v1": 60, "dlrm8-v1": 60, "quick-v1": 10, "tiny-v1": 12}
SEARCHES = ("neuroshard", "neuroshard_plus")
BASELINES = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy")

#: Cost in ms and start of the digest, e.g. "12.3456789 0a1b2c3d4e5f6071", or "no plan".
Line = str


def plans_of(suite: str, solver: str, tasks: int) -> list[Line]:
    """Return the plans of the first tasks of a suite."""
    cost = make_cost("simulator" if solver in SEARCHES else "roofline")
    lines = []
    for task in itertools.islice(load_suite(suite), tasks):
        try:
            plan = make_solver(solver).solve(task, cost)
        except NoFeasiblePlanError:
            lines.append("no plan")
        else:
            (found,) = cost.evaluate(task, [plan])
            lines.append(f"{found.total_ms:.9g} {plan.digest[:16]}")
    return lines


def differences(parts: Iterable[tuple[str, int]]) -> list[str]:
    """Say which plans of the first tasks of suites are not those written down."""
    golden: dict[str, dict[str, list[Line]]] = json.loads(GOLDEN.read_text())
    return [
        f"{suite} {solver} task {n}: {now}, was {before}"
        for suite, tasks in parts
        for solver in (*SEARCHES, *BASELINES)
        for n, (now, before) in enumerate(
            zip(plans_of(suite, solver, tasks), golden[suite][solver][:tasks], strict=True)
        )
        if not same(now, before)
    ]


def same(now: Line, before: Line) -> bool:
    """Say whether the plan is the same and its cost too, up to rounding."""
    if now == before:
        return True
    now_ms, now_digest = now.split()
    before_ms, before_digest = before.split()
    return now_digest == before_digest and math.isclose(float(now_ms), float(before_ms), rel_tol=1e-7)


def main() -> None:
    """Record or compare."""
    command, *parts = sys.argv[1:]
    if command == "record":
        solvers = (*SEARCHES, *BASELINES)
        content = {suite: {name: plans_of(suite, name, tasks) for name in solvers} for suite, tasks in SUITES.items()}
        GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
    else:
        chosen = [(suite, int(tasks)) for suite, tasks in (part.split(":") for part in parts)]
        sys.exit("\n".join(differences(chosen or SUITES.items())) or 0)


if __name__ == "__main__":
    main()
