"""Draw the tasks of a suite anew, so that solvers differ on them, and write the digests of suites that ship.

    python tools/draw_suite.py draw SUITE.yaml
    python tools/draw_suite.py draw --kinds [--larger-than-a-device] SUITE.yaml
    python tools/draw_suite.py draw --ladder lpt,neuroshard SUITE.yaml
    python tools/draw_suite.py digests [SUITE ...]      # of all suites when none is given

The file says how tasks are drawn: pool, batch, precision, optimiser, and per group devices, memory, widths and numbers
of tables. Draws of each group are looked at in their order, from the first on, and kept where

- longest processing time first on single-table times of the oracle, tables halved only where whole ones do not fit,
  costs at least so much more (`--gap`) than what `neuroshard_plus` finds, by the oracle and by the judge that
  predicts, or finds no plan at all;
- no table is a bound by itself: the narrowest shard of each takes no longer than an even share of all tables;
- the plan found is inside of what oracle and judge were trained on.

With --kinds, draws are kept where sharding types matter: the best plan by columns alone costs at least so much more by
the judge than the best plan of any kind, or there is none; `neuroshard_plus` finds both, first with the oracle and then
with the judge, unless the judge is not additive. With --larger-than-a-device, some table must be larger than a device.

The tool writes the numbers of these draws into the file, as `draws`. The same file, seed, solvers and simulators give
the same numbers; suites that ship were drawn with those of their day. Digests fix the tasks: once a suite is released,
its tasks never change, and a changed task needs a suite of another name. A file of digests that would change is
therefore only written with --replace, for suites that nobody has used yet.
"""

import argparse
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from baselines.greedy import alone_ms
from baselines.lpt import merged, place_with_cuts, whole_tables
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.errors import NO_PLAN, InputError, NoFeasiblePlanError, ShardGymError
from shardgym.evaluation.solver import make_solver
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.suites import Suite, digests_path, load_suite, suite_names
from shardgym.tasks.suites.sources import DrawnSource
from shardgym.tasks.suites.spec import read_suite_file
from shardgym.tasks.task import ShardingTask

#: Of a group.
MOST_DRAWS = 1000
#: Of `neuroshard_plus`: enough to tell whether a task separates.
KICKS = 16

#: Verdicts on a draw that is to be in the suite.
KEPT = "kept"
KEPT_UNSOLVED = "kept, as the rule finds no plan"
KEPT_UNCUT = "kept, as columns find no plan"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw", help="choose tasks, and write their numbers into suite files")
    draw.add_argument("files", nargs="+", type=Path, metavar="SUITE.yaml", help="suite files; they are rewritten")
    draw.add_argument("--gap", type=float, default=0.10, metavar="SHARE", help="(%(default)s)")
    draw.add_argument("--kinds", action="store_true", help="keep draws in which sharding types matter")
    draw.add_argument("--larger-than-a-device", action="store_true", help="keep only draws with such a table")
    draw.add_argument("--ladder", metavar="SOLVERS", help="keep draws on which these solvers, worst first, differ")
    digests = commands.add_parser("digests", help="write the digests of suites that come with the package")
    digests.add_argument("suites", nargs="*", help="names of suites; all when none is given")
    digests.add_argument("--replace", action="store_true", help="overwrite digests that differ")
    options = parser.parse_args(arguments)
    try:
        if options.command == "draw":
            for path in options.files:
                redraw(path, options)
            return 0
        written = [write_digests(name, options.replace) for name in options.suites or suite_names()]
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0 if all(written) else 1


def redraw(path: Path, options: argparse.Namespace) -> None:
    """Choose draws for every group of a suite file, and write their numbers into it."""
    suite = load_suite(path)
    if not isinstance(suite.source, DrawnSource):
        raise InputError(f"{path}: expected tasks of kind 'drawn'")
    oracle, judge = predicted_costs(suite)
    content = read_suite_file(path)
    tasks = content["tasks"]
    spec = suite.source.spec
    source = suite.source.redrawn(spec.pool, spec.half, MOST_DRAWS)
    groups = [dict(group) for group in tasks["groups"]]
    for number, group in enumerate(groups):
        candidates = range(number, len(source), len(groups))  # groups take turns
        group["draws"] = choose(source, candidates, group["count"], options, oracle, judge)
    tasks["groups"] = groups
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    # Lists of numbers stay on lines of their own.
    made = yaml.dump(content, Dumper=_Plain, sort_keys=False, width=116, default_flow_style=None, allow_unicode=True)
    path.write_text("\n".join([*comments, made]), encoding="utf-8")
    load_suite(path)
    print(f"{path}: written")


def choose(
    source: DrawnSource, candidates: range, count: int, options: argparse.Namespace, oracle: CostModel, judge: CostModel
) -> list[int]:
    """Return the numbers of the first draws that separate solvers; raises `InputError` where there are too few."""
    name = source.group(candidates[0])
    kept: list[int] = []
    verdicts: Counter[str] = Counter()
    bar = tqdm(candidates, desc=name, unit="draw", disable=None)
    for draw, index in enumerate(bar):
        task = source.build(index, f"{name}, draw {draw}")
        if options.larger_than_a_device and largest_bytes(task) <= max(task.capacity_bytes):
            verdict = "each table fits on a device"
        elif options.ladder:
            verdict = verdict_on_ladder(task, options.ladder.split(","), options.gap, oracle, judge)
        else:
            verdict = (verdict_on_kinds if options.kinds else verdict_on)(task, options.gap, oracle, judge)
        verdicts[verdict] += 1
        if verdict in (KEPT, KEPT_UNSOLVED, KEPT_UNCUT):
            kept.append(draw)
        bar.set_postfix(verdicts)
        if len(kept) == count:
            bar.close()
            print(f"{name}: " + ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common()))
            return kept
    raise InputError(f"{name}: {len(kept)} of {len(candidates)} draws separate solvers ({dict(verdicts)})")


def verdict_on(task: ShardingTask, gap: float, oracle: CostModel, judge: CostModel) -> str:
    """Return one of the verdicts above for a task that is to be in the suite, else why it is not."""
    if is_bound_by_a_table(task, oracle):
        return "bound by a table"
    rule = lpt(task, oracle)
    try:
        found = make_solver("neuroshard_plus", kicks=KICKS).solve(task, oracle)
    except NO_PLAN:
        return "without a plan"
    for name, cost in (("oracle", oracle), ("judge", judge)):
        answer = cost.evaluate(task, [found])[0]
        if any(note.startswith(UNFAMILIAR) for note in answer.notes):
            return f"unfamiliar to the {name}"
        if rule is not None and cost.evaluate(task, [rule])[0].total_ms < (1 + gap) * answer.total_ms:
            return f"too close by the {name}"
    return KEPT if rule is not None else KEPT_UNSOLVED


def verdict_on_kinds(task: ShardingTask, gap: float, oracle: CostModel, judge: CostModel) -> str:
    """Return one of the verdicts above for a task in which sharding types matter, else why they do not."""
    for name, cost in (("oracle", oracle), ("judge", judge)):
        if cost.additive() is None:  # then the solver searches only columns
            continue
        try:
            found = make_solver("neuroshard_plus", kicks=KICKS).solve(task, cost)
        except NO_PLAN:
            return "without a plan"
        try:
            columns = make_solver("neuroshard_plus", kicks=KICKS, sharding_types=[]).solve(task, cost)
        except NO_PLAN:
            return KEPT_UNCUT
        of_columns, of_any = (answer.total_ms for answer in judge.evaluate(task, [columns, found]))
        if of_columns < (1 + gap) * of_any:
            return f"columns are nearly as good, asking the {name}"
    return KEPT


def verdict_on_ladder(task: ShardingTask, solvers: list[str], gap: float, oracle: CostModel, judge: CostModel) -> str:
    """Return one of the verdicts above for a task on which each solver is worse than the next, else why not."""
    try:
        plans = [make_solver(name).solve(task, oracle) for name in solvers]
    except NO_PLAN:
        return "without a plan"
    for name, cost in (("oracle", oracle), ("judge", judge)):
        answers = cost.evaluate(task, plans)
        if any(note.startswith(UNFAMILIAR) for answer in answers for note in answer.notes):
            return f"unfamiliar to the {name}"
        for solver, (worse, better) in zip(solvers, itertools.pairwise(answers), strict=False):
            if worse.total_ms < (1 + gap) * better.total_ms:
                return f"{solver} too close to the next by the {name}"
    return KEPT


def predicted_costs(suite: Suite) -> tuple[CostModel, CostModel]:
    """Return oracle and judge of a suite's track that measures nothing."""
    track = suite.tracks[-1]
    return make_cost(track.oracle.cost, **track.oracle.settings), make_cost(track.judge.cost, **track.judge.settings)


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


def largest_bytes(task: ShardingTask) -> int:
    """Return what the largest table takes."""
    return max(task.block_bytes(table, table.num_embeddings, table.embedding_dim) for table in task.tables)


class _Plain(yaml.SafeDumper):
    """Writes what several groups share once for each of them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def write_digests(name: str, replace: bool) -> bool:
    """Write the digests of one suite; returns whether the file now holds them."""
    suite = load_suite(name, verify=False)
    tasks = tqdm(suite, desc=name, unit="task", delay=1, leave=False, disable=None)
    text = "".join(f"{task.digest}\n" for task in tasks)
    path = digests_path(name)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        print(f"{name}: {len(suite)} digests, unchanged")
        return True
    if path.exists() and not replace:
        print(f"{name}: tasks differ from the digests in {path}; --replace overwrites them", file=sys.stderr)
        return False
    path.write_text(text, encoding="utf-8")
    print(f"{name}: {len(suite)} digests written")
    return True


if __name__ == "__main__":
    sys.exit(main())
