"""What is published about the solvers, held against boards: in direction, and in size where a figure is published.

    python studies/claims/run.py [FOLDER ...] [--out FILE]

FOLDERs hold records of `shardgym run`, by default those of the simulated boards and of the GPU suites. A claim is a row
per suite, and one per family of suites where it has a single rival. "against" is the best of the rivals on the same
tasks. "ahead" is the geometric mean over tasks that both solved of the rival's cost over the solver's, less 1, with the
95 % interval of boards. Costs are geometric means over seeds, and over the boards of a suite.

"here" is "yes" where the whole interval is on the side of the claim, "no" where it is on the other, else "open".
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.leaderboard import Board, load_boards
from shardgym.leaderboard.boards import SolverResults
from shardgym.leaderboard.overall import ALL_SUITES, GPU_SUITES, SUITES
from shardgym.leaderboard.ranking import HEURISTICS
from shardgym.leaderboard.statistics import mean_interval

ROOT = Path(__file__).parents[2]
#: Suites whose tasks are alike, taken together where a claim has one rival.
FAMILIES = {
    "half full": SUITES["half-full"],
    "tight or unequal": (*SUITES["tight"], *SUITES["unequal"]),
    "GPUs": GPU_SUITES,
}
BOARDS = [
    *(ROOT / "leaderboards" / f"{suite}-simulator" for suite in ALL_SUITES),
    *(ROOT / "leaderboards" / f"{suite}-gpu" for suite in GPU_SUITES),
]
COLUMNS = ("claim", "published", "board", "solver", "against", "tasks", "ahead", "from", "to", "here")  # fmt: skip

#: Share of the tasks that the best rival solved which a rival must have solved to be compared.
COMPARABLE = 0.9

NEUROSHARD = "neuroshard"
OF_ITS_TIME = ("random", *HEURISTICS, "autoshard", "dreamshard")


class Claim(NamedTuple):
    """A published claim."""

    text: str
    solver: str  #: that it is about
    rivals: tuple[str, ...]  #: the best of those on the board counts
    published: str = ""  #: the figure; empty where none is known


CLAIMS = (
    Claim("NeuroShard ahead of the best of its time", NEUROSHARD, OF_ITS_TIME, "up to 23.8 %"),
    Claim("NeuroShard ahead of LPT (not published)", NEUROSHARD, ("lpt",)),
    Claim("NeuroShardPlus ahead of NeuroShard (not published)", "neuroshard_plus", (NEUROSHARD,)),
    Claim("PpoColumns ahead of NeuroShard (not published)", "ppo_columns", (NEUROSHARD,)),
    Claim("NeuroShardPlus ahead of PpoColumns (not published)", "neuroshard_plus", ("ppo_columns",)),
    Claim("PpoAny ahead of NeuroShard (not published)", "ppo_any", (NEUROSHARD,)),
    Claim("NeuroShardPlus ahead of PpoAny (not published)", "neuroshard_plus", ("ppo_any",)),
    Claim("DreamShard ahead of heuristics", "dreamshard", ("random", *HEURISTICS), "up to 19 %"),
    Claim("DreamShard ahead of LPT (not published)", "dreamshard", ("lpt",)),
    Claim("AutoShard ahead of heuristics", "autoshard", HEURISTICS),
    Claim("AutoShard ahead of LPT (not published)", "autoshard", ("lpt",)),
    Claim("SurCo-hybrid ahead of DreamShard", "surco", ("dreamshard",)),
    Claim("SurCo-hybrid ahead of LPT (not published)", "surco", ("lpt",)),
)  # fmt: skip


def main() -> None:
    """Read the boards and print the claims."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=BOARDS, help="simulated ones and of GPU suites")
    parser.add_argument("--out", type=Path, help="CSV file to write the rows to, besides printing them")
    arguments = parser.parse_args()
    of_suite: dict[str, list[Board]] = defaultdict(list)
    for board in load_boards(arguments.folders):
        of_suite[board.run.suite].append(board)
    suites = {suite: costs_of(boards) for suite, boards in of_suite.items()}
    rows = []
    for claim in CLAIMS:
        rows += [check(claim, suite, costs_ms) for suite, costs_ms in suites.items()]
        names = {claim.solver, *claim.rivals}
        for family, members in FAMILIES.items() if len(names) == 2 else ():
            costs = [suites[suite] for suite in members if suite in suites and names <= suites[suite].keys()]
            if len(costs) > 1:
                rows.append(check(claim, family, {name: np.concatenate([of[name] for of in costs]) for name in names}))
    # Rows of what a board lacks are shorter.
    rows = [{column: row.get(column, "") for column in COLUMNS} for row in rows]
    if arguments.out:
        with arguments.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(tabulate(rows, headers="keys"))


def costs_of(boards: Sequence[Board]) -> dict[str, Floats]:
    """Return costs in ms by solver that is on all boards of a suite: geometric mean over them, NaN without one, (T,)."""
    found: dict[str, list[Floats]] = defaultdict(list)
    for board in boards:
        for results in SolverResults.of_board(board):
            found[results.solver].append(results.cost_ms)
    return {name: np.exp(np.mean(np.log(own), axis=0)) for name, own in found.items() if len(own) == len(boards)}


def check(claim: Claim, title: str, costs_ms: dict[str, Floats]) -> dict[str, Any]:
    """Return a row for all tasks of a suite or a family."""
    row = {"claim": claim.text, "published": claim.published, "board": title}
    rivals = [name for name in claim.rivals if name in costs_ms]
    lacking = [name for name in (claim.solver, *claim.rivals) if name not in costs_ms]
    if claim.solver in lacking or not rivals:
        return row | {"here": f"the board lacks {' and '.join(lacking)}"}
    best = best_of(rivals, costs_ms)
    found = {"solver": claim.solver, "against": best} | compared(costs_ms[claim.solver], costs_ms[best])
    return row | found | {"here": found["here"] + (f", without {', '.join(lacking)}" if lacking else "")}


def best_of(rivals: Sequence[str], costs_ms: dict[str, Floats]) -> str:
    """Return the rival with the lowest geometric mean on the tasks that all comparable rivals solved."""
    logs = {name: np.log(costs_ms[name]) for name in rivals}
    solved = {name: int(np.isfinite(values).sum()) for name, values in logs.items()}
    comparable = [name for name in rivals if solved[name] >= COMPARABLE * max(solved.values())]
    common = np.all([np.isfinite(logs[name]) for name in comparable], axis=0)
    return min(comparable, key=lambda name: float(logs[name][common].mean()) if common.any() else np.inf)


def compared(mine: Floats, theirs: Floats) -> dict[str, Any]:
    """Return how far a solver is ahead of a rival on the tasks that both solved; figures are NaN where there are none."""
    both = np.isfinite(mine) & np.isfinite(theirs)
    found: dict[str, Any] = {"tasks": int(both.sum())}
    if not both.any():
        return found | {"here": "no task that both solved"}
    logs = np.log(theirs[both] / mine[both])
    interval = mean_interval(logs)
    shown = {"ahead": f"{np.exp(logs.mean()) - 1:+.1%}", "from": "", "to": ""}
    if interval is None:
        return found | shown | {"here": "too few tasks"}
    low, high = np.exp(interval.low), np.exp(interval.high)
    verdict = "yes" if low > 1 else "no" if high < 1 else "open"
    return found | shown | {"from": f"{low - 1:+.1%}", "to": f"{high - 1:+.1%}", "here": verdict}


if __name__ == "__main__":
    main()
