"""Compare the boards of this folder with those of leaderboards/: `python studies/second_processor/compare.py`.

By board: plans that are equal, the ratio of ms, paces, how much costs differ but for a factor per task, and scores; then Kendall's tau, over the plans of a task, of both processors and of the simulated judge.
"""

import itertools
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from shardgym import load_suite, make_cost
from shardgym.evaluation.result import Result, read_records, records_file

HERE = Path(__file__).parent
BOARDS = HERE.parents[1] / "leaderboards"
#: Boards of the suite that was measured three times.
REPEATS = ("quick-v2-fbgemm", "repeats/2", "repeats/3")


def records_of(folder: Path) -> dict[tuple[int, str, int], Result]:
    """Return the records of a folder by task, solver and seed."""
    return {result.key: result for result in read_records(records_file(folder))}


def by_task(here: dict, there: dict) -> list[np.ndarray]:
    """Return the ms of both on the plans of each task, shape (2, plans)."""
    tasks = sorted({task for task, *_ in here})
    keys = [[key for key in here if key[0] == task] for task in tasks]
    return [np.array([[found[key].total_ms for key in of_task] for found in (here, there)]) for of_task in keys]


def spread(here: dict, there: dict) -> float:
    """Return the root mean square of log ratios about the mean of their task."""
    logs = [np.log(ms[0] / ms[1]) for ms in by_task(here, there)]
    squares = sum(((ratios - ratios.mean()) ** 2).sum() for ratios in logs)
    return float(np.sqrt(squares / sum(len(ratios) - 1 for ratios in logs)))


def scores(found: dict) -> dict[str, float]:
    """Return the geometric mean cost of each solver, relative to lpt."""
    solvers = dict.fromkeys(solver for _, solver, _ in found)
    ms = {solver: [found[key].total_ms for key in sorted(found) if key[1] == solver] for solver in solvers}
    return {solver: float(np.exp(np.mean(np.log(np.divide(ms[solver], ms["lpt"]))))) for solver in solvers}


def main() -> None:
    """Print everything."""
    taus = []
    for folder in sorted(HERE.glob("*-fbgemm")):
        here, there = records_of(folder), records_of(BOARDS / folder.name)
        same = sum(here[key].plan == there[key].plan for key in here)
        ratio = np.median([here[key].total_ms / there[key].total_ms for key in here])
        paces = [np.median([result.cost.pace for result in found.values()]) for found in (here, there)]
        own, other = scores(here), scores(there)
        differ = ", ".join(f"{solver} {abs(own[solver] - other[solver]):.3f}" for solver in own if solver != "lpt")
        order = sorted(own, key=own.get) == sorted(other, key=other.get)
        print(
            f"{folder.name}: {same} of {len(here)} plans equal, {ratio:.2f} times the ms, paces {paces[0]:.2f} and "
            f"{paces[1]:.2f}, {'same' if order else 'another'} order, costs differ by {spread(here, there):.1%}, scores "
            f"by: {differ}"
        )
        suite = load_suite(folder.name.removesuffix("-fbgemm"))
        choice = suite.track("simulator").judge
        judge = make_cost(choice.cost, **choice.settings)
        for number, (mine, theirs) in enumerate(by_task(here, there)):
            plans = [result.plan for key, result in here.items() if key[0] == number]
            judged = judge.evaluate(suite[number], plans)
            priced = np.array([cost.feasible for cost in judged])
            ms = np.array([cost.total_ms for cost in judged])[priced]
            pairs = ((mine, theirs), (ms, mine[priced]), (ms, theirs[priced]))
            taus.append([kendalltau(*pair).statistic for pair in pairs])
    both, mine, theirs = np.nanmean(taus, axis=0)
    print(f"tau over {len(taus)} tasks: processors {both:.2f}, judge {mine:.2f} here and {theirs:.2f} there")
    for first, second in itertools.combinations(REPEATS, 2):
        print(f"{first} and {second}: costs differ by {spread(records_of(HERE / first), records_of(HERE / second)):.1%}")


if __name__ == "__main__":
    main()
