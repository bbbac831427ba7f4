"""Run solvers on a suite and rank them.

Every solver solves every task with the oracle; then the judge, another cost model that no solver gets to see,
scores all plans of the task together. Where judge and oracle are the same model (roofline for both), solvers are marked
by their own measure, and the table says so. One record per task, solver and seed is appended to OUT/records.jsonl as
soon as the task is scored, failures included. Killed at any moment, the same command continues. At the end the ranked
table is printed and written to OUT/table.md.

--resume: 'missing' solves what has no record (default), 'failed' also solves again what failed, 'all' starts afresh
and moves the old records aside, 'none' only reports what is there. A stored plan is used again even if the code of its
solver has changed since.

Exit code 1 when a solver raised or returned nonsense, when a plan could not be scored, or when nothing was solved at
all; a task that a solver found no feasible plan for is an outcome and shows as its success rate.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from pathlib import Path

from shardgym.cli.entry import INTERRUPTED
from shardgym.cli.inputs import add_device, device_settings
from shardgym.cli.named import NOTATION, parse_labelled, parse_named
from shardgym.cli.output import print_json, say, write_result
from shardgym.cli.parser import Parser, folder, natural, one_of, positive, positive_number
from shardgym.evaluation import Resume, SolverSpec, evaluate
from shardgym.evaluation.result import Result, RunInfo
from shardgym.evaluation.runner import ERRORS
from shardgym.evaluation.store import RECORDS, read_records
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.ranking import HEURISTICS
from shardgym.leaderboard.render import to_dict
from shardgym.progress import remarks
from shardgym.suites import Suite, load_suite
from shardgym.suites.spec import CostChoice, Track

DEFAULT_SOLVERS = ("random", *HEURISTICS, "neuroshard", "neuroshard_plus")
TABLE = "table.md"


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--suite", required=True, help="name of a suite, or a suite file")
    add("--solver", action="append", metavar="NAME", help=f"[LABEL=]{NOTATION}, registered name or module:Class; "
        f"repeat for several, with labels if names are the same (default: {', '.join(DEFAULT_SOLVERS)})")  # fmt: skip
    add("--cost", metavar="NAME", help=f"the judge, {NOTATION} (default: the suite's); 'simulator' for the simulated "
        "track")  # fmt: skip
    add("--oracle", metavar="NAME", help=f"the cost that solvers may query, {NOTATION} (default: the track's)")
    add_device(parser)
    add("--out", type=folder, metavar="DIR", help="folder of the records (default: results/SUITE-JUDGE)")
    add("--limit", type=positive, metavar="N", help="only the first N tasks")
    add("--seed", type=natural, action="append", help="given to solvers; repeat for several (default: 0)")
    add("--time-limit", type=positive_number, metavar="SECONDS", help="given to solvers that take one")
    add("--resume", type=one_of("resume mode", [str(m) for m in Resume]), default="missing", metavar="MODE",
        help=", ".join(Resume))  # fmt: skip


def run(arguments: Namespace) -> int:
    """Run, then print the table."""
    suite = load_suite(arguments.suite)
    track = _track(arguments, suite)
    out = arguments.out or Path("results") / f"{suite.name}-{track.judge.cost.replace(':', '.')}"
    try:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), remarks(shown=not arguments.json):
            results = _evaluate(arguments, suite, track, out)
    except KeyboardInterrupt:
        say(_how_to_continue(out))
        return INTERRUPTED
    _report(out, results, arguments.json)
    failed = any(r.status in ("error", "unmeasured") for r in results)
    return 1 if failed or not any(r.status == "ok" for r in results) else 0


def _track(arguments: Namespace, suite: Suite) -> Track:
    """Return the suite's track, with what the command line says otherwise."""
    given = None if arguments.cost is None else parse_named(arguments.cost)
    track = suite.track(None if given is None else given.name)
    judge = CostChoice(*given) if given is not None and given.settings else track.judge
    oracle = track.oracle if arguments.oracle is None else CostChoice(*parse_named(arguments.oracle))
    device = device_settings(arguments.device, given.settings if given is not None else {})
    same = device if oracle.cost == judge.cost else {}
    return Track(CostChoice(judge.cost, judge.settings | device), CostChoice(oracle.cost, oracle.settings | same))


def _evaluate(arguments: Namespace, suite: Suite, track: Track, out: Path) -> list[Result]:
    solvers = [_spec(text) for text in arguments.solver or DEFAULT_SOLVERS]
    return evaluate(
        suite, solvers, out=out, judge=track.judge.cost, judge_settings=track.judge.settings,
        oracle=track.oracle.cost, oracle_settings=track.oracle.settings,
        seeds=arguments.seed or [0], limit=arguments.limit, resume=arguments.resume,
        time_limit_s=arguments.time_limit, progress=not arguments.json,
    )  # fmt: skip


def _spec(text: str) -> SolverSpec:
    label, (name, settings) = parse_labelled(text)
    return SolverSpec(name, settings, label)


def _how_to_continue(out: Path) -> str:
    info = RunInfo.beside(out) if out.exists() else None
    if info is None:
        return "shardgym: interrupted before the first record"
    done, total = len(read_records(out / RECORDS)) if (out / RECORDS).exists() else 0, _total(info)
    return f"shardgym: interrupted with {done} of {total} records in {out}; the same command continues"


def _total(info: RunInfo) -> int:
    return info.num_tasks * len(info.solvers) * len(info.seeds)


def _report(out: Path, results: list[Result], as_json: bool) -> None:
    rankings = [rank(board) for board in load_boards([out / RECORDS])]
    write_result(out / TABLE, render(rankings, "md") + "\n")
    files = {"records": str(out / RECORDS), "table": str(out / TABLE)}
    if (out / ERRORS).exists():
        files["tracebacks"] = str(out / ERRORS)
    failures = [r for r in results if r.status in ("error", "unmeasured")]
    if as_json:
        print_json({"rankings": [to_dict(r) for r in rankings], "files": files, "failures": len(failures)})
        return
    print(render(rankings))
    for r in failures[:3]:
        say(f"shardgym: {r.solver} on task {r.task_index}, {r.status}: {r.reason}")
    print("\n" + "\n".join(f"{what}: {path}" for what, path in files.items()))
