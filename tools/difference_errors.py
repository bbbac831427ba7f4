"""How wrong costs are about the difference of two plans of one task: `python tools/difference_errors.py [--write]`.

The tool measures nothing. It uses these measurements:

- `leaderboards/*-fbgemm`: plans of many solvers, tables whole or cut by columns, as complete steps that `fbgemm`
  measured. Costs that predict price the same plans. Plans of a task that were measured together are pairs.
- `studies/sharding_kinds`: plans of all of TorchRec's sharding types as steps of TorchRec, and every cost's figures of
  these plans, by the versions in `versions.json`. Plans on as many ranks are pairs: for "rows", all but those of two
  plans without rows and replicas, which are for "columns", of `fbgemm`.
- `benchmarks/published_gpu`: kernels and collectives that others measured, predicted by `gpu` with constants that were
  fitted without their source. Pairs are rows of one source and GPU, of one kind: kernels and exchanges for "columns",
  row collectives besides for "rows".

A pair counts if the cost has the two within a factor of `shardgym.costs.comparison.FARTHEST`. Printed are, for each
cost, the error, and how many pairs are in the predicted order where the predicted difference is above the error and
where it is within. --write keeps them in the package, where comparisons of plans find them.
"""

import argparse
import csv
import itertools
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from shardgym import CostModel, load_suite, make_cost
from shardgym.costs.comparison import ERRORS, FARTHEST, Cuts, Devices, DifferenceError, DifferenceErrors
from shardgym.errors import InputError
from shardgym.files import write_whole
from shardgym.leaderboard.boards import load_boards

ROOT = Path(__file__).parents[1]
KINDS = ROOT / "studies" / "sharding_kinds"
PUBLISHED = ROOT / "benchmarks" / "published_gpu"

#: Sharding types of plans without rows and replicas.
BY_COLUMNS = ("table_wise", "column_wise", "table_column_wise")

#: Costs that predict the plans of boards.
PREDICTING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("simulator", {}),
    ("simulator", {"role": "judge"}),
    ("roofline", {}),
    ("torchrec_rating", {}),
    ("replay", {}),
)


class Pair(NamedTuple):
    """Logarithms of the ratio of two totals."""

    predicted: float
    measured: float


def pairs_of(groups: Iterable[list[tuple[float, float]]]) -> Iterator[Pair]:
    """Yield the pairs within each group of predicted and measured totals that are near enough to count."""
    for members in groups:
        for (predicted, measured), (other, real) in itertools.combinations(members, 2):
            pair = Pair(math.log(predicted / other), math.log(measured / real))
            if abs(pair.predicted) <= math.log(FARTHEST):
                yield pair


def error_of_pairs(
    cost: str, version: str, devices: Devices, cuts: Cuts, pairs: Iterable[Pair], against: str
) -> DifferenceError:
    """Return the error of a cost by some pairs; raises `InputError` if there are none."""
    found = list(pairs)
    if not found:
        raise InputError(f"cost '{cost}': no pair of plans for {cuts} on {devices}: expected some in {against}")
    error = statistics.median(abs(pair.predicted - pair.measured) for pair in found)
    right: dict[bool, list[bool]] = {True: [], False: []}
    for pair in found:
        right[abs(pair.predicted) > error].append(pair.predicted * pair.measured > 0)
    above, within = (round(statistics.mean(right[key]), 3) if right[key] else None for key in (True, False))
    return DifferenceError(cost, version, devices, cuts, round(error, 4), len(found), above, within, against)


def on_boards(costs: Iterable[CostModel] | None = None) -> Iterator[DifferenceError]:
    """Yield the errors of costs that predict, by default of all, on the plans of measured boards."""
    plans: dict[tuple[str, int, str], dict[str, tuple[Any, list[float]]]] = defaultdict(dict)
    folders = sorted((ROOT / "leaderboards").glob("*-fbgemm"))
    for board in load_boards(folders):
        for result in board.results:
            if result.cost is None or result.plan is None or not result.cost.feasible:
                continue
            of_task = plans[result.suite, result.task_index, result.cost.session]
            of_task.setdefault(result.plan.digest, (result.plan, []))[1].append(result.cost.total_ms)
    for cost in costs or [make_cost(name, **settings) for name, settings in PREDICTING]:
        groups = []
        for (suite, index, _), of_task in plans.items():
            answers = cost.evaluate(load_suite(suite)[index], [plan for plan, _ in of_task.values()])
            measured = [statistics.mean(totals) for _, totals in of_task.values()]
            # A cost does not know all plans: simulators price no replicas.
            groups.append([(a.total_ms, real) for a, real in zip(answers, measured, strict=True) if a.feasible])
        yield error_of_pairs(
            cost.name, cost.version, "cpu", "columns", pairs_of(groups), "plans of boards that fbgemm measured"
        )


def by_kinds() -> Iterator[DifferenceError]:
    """Yield the errors of the costs that were compared with TorchRec's steps of all sharding types."""
    versions = json.loads((KINDS / "versions.json").read_text(encoding="utf-8"))
    with (KINDS / "result.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    def mean(row: dict[str, str], what: str) -> float:
        return statistics.mean(float(row[f"{what}/{turn}"]) for turn in range(2))

    for cost, version in versions.items():
        groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
        columns: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            both = mean(row, cost), mean(row, "real")
            if math.isfinite(both[0]):
                groups[row["ranks"]].append(both)
                if row["kind"] in BY_COLUMNS:
                    columns[row["ranks"]].append(both)
        of_columns = list(pairs_of(columns.values()))
        others = list(pairs_of(groups.values()))
        for pair in of_columns:
            others.remove(pair)
        yield error_of_pairs(cost, version, "cpu", "rows", others, "TorchRec's steps of all sharding types")
        if cost == "fbgemm":
            yield error_of_pairs(cost, version, "cpu", "columns", of_columns, "TorchRec's steps of all sharding types")


def published() -> Iterator[DifferenceError]:
    """Yield the errors of `gpu` on published rows whose source its constants were not fitted to."""
    sys.path.insert(0, str(PUBLISHED))
    import run

    by: dict[str, dict[Hashable, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row, _, apart in run.hold(run.read_rows()):
        if apart is not None and not row.faulty:
            figure = row.time_us or row.gbps
            by[row.kind][row.source, row.gpu, row.time_us > 0].append((figure * apart, figure))
    cost = make_cost("gpu")
    for cuts, kinds in (("columns", ("fused", "exchange")), ("rows", ("fused", "exchange", "collective"))):
        pairs = pairs_of(group for kind in kinds for group in by[kind].values())
        yield error_of_pairs(cost.name, cost.version, "gpu", cuts, pairs, "published kernels and collectives")


def main(arguments: list[str] | None = None) -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the errors in the package")
    options = parser.parse_args(arguments)
    errors = [*on_boards(), *by_kinds(), *published()]
    found = DifferenceErrors(tuple(sorted(errors, key=lambda of: (of.cost, of.version, of.devices, of.cuts))))
    if options.write:
        write_whole(ERRORS, found.to_json(indent=1) + "\n")
    print(tabulate([one.to_dict() for one in found.errors], headers="keys"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
