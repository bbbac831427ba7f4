"""run, leaderboard, verify: solvers on a suite, what came of it as tables and pages, and stored plans scored again."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from shardgym.cli import INTERRUPTED
from shardgym.cli.common import (
    NOTATION,
    Command,
    OneOf,
    engine_options,
    folder,
    json_option,
    natural,
    parse_spec,
    positive,
    positive_number,
    print_json,
    say,
)
from shardgym.engines import make_engine
from shardgym.errors import InputError
from shardgym.evaluation import Resume, SolverSpec, evaluate
from shardgym.evaluation import verify as verify_records
from shardgym.evaluation.result import RECORDS, Result, RunInfo, read_records, records_file
from shardgym.evaluation.runner import TIMEOUT_S
from shardgym.evaluation.store import ERRORS
from shardgym.evaluation.verify import RULE
from shardgym.files import write_whole
from shardgym.leaderboard import BASE, load_boards, rank, render
from shardgym.leaderboard.page import render_page
from shardgym.leaderboard.ranking import HEURISTICS
from shardgym.leaderboard.tables import FORMATS, to_dict
from shardgym.progress import log_to_stderr
from shardgym.tasks.suites import Suite, load_suite, suite_names
from shardgym.tasks.suites.spec import CostChoice, Track

DEFAULT_SOLVERS = ("random", *HEURISTICS, "neuroshard", "neuroshard_plus")
TABLE = "table.md"
HTML = "html"


@click.command("run", cls=Command)
@click.option(
    "--suite", "suite_name", required=True, metavar="NAME", type=OneOf("suite", suite_names(), " or a suite file"),
    help="Name of a suite, or a suite file.",
)  # fmt: skip
@click.option(
    "--solver",
    "solvers",
    multiple=True,
    metavar="NAME",
    help=f"[LABEL=]{NOTATION}, registered name or module:Class; repeat for several, with labels if names are the same "
    f"(default: the suite's, else {', '.join(DEFAULT_SOLVERS)}).",
)
@click.option(
    "--cost", metavar="NAME", help=f"The judge, {NOTATION} (default: the suite's); 'simulator' for the simulated track."
)
@click.option("--oracle", metavar="NAME", help=f"The cost that solvers may query, {NOTATION} (default: the track's).")
@click.option("--out", type=folder, help="Where the records go (default: results/SUITE-JUDGE).")
@click.option("--limit", type=positive, metavar="N", help="Only the first N tasks.")
@click.option("--seed", "seeds", type=natural, multiple=True, help="Given to solvers; repeat for several (default: 0).")
@click.option("--time-limit", type=positive_number, metavar="SECONDS", help="Given to solvers that take one.")
@click.option(
    "--timeout", type=positive_number, default=TIMEOUT_S, metavar="SECONDS",
    help="A solver that takes longer for a plan is stopped.",
)  # fmt: skip
@click.option(
    "--isolate/--no-isolate", default=None,
    help="Each solver in a process of its own, or all in this one, for debuggers (default: where there is fork).",
)  # fmt: skip
@click.option("--resume", type=OneOf("resume mode", map(str, Resume)), default="missing", help=", ".join(Resume))
@engine_options
@json_option
def run(
    suite_name: str,
    solvers: tuple[str, ...],
    cost: str | None,
    oracle: str | None,
    out: Path | None,
    limit: int | None,
    seeds: tuple[int, ...],
    time_limit: float | None,
    timeout: float,
    isolate: bool | None,
    resume: str,
    engine: str,
    workers: int | None,
    address: str | None,
    as_json: bool,
) -> int:
    """Run solvers on a suite and rank them.

    Every solver solves every task with the oracle; then the judge, another cost model that no solver is given,
    scores all plans of the task together. Where judge and oracle are the same model (roofline for both), the
    comparison is circular, and the table says so. One record per task, solver and seed is appended to
    FOLDER/records.jsonl as soon as the task is scored, failures included. Killed at any moment, the same command
    continues. At the end the ranked table is printed and written to FOLDER/table.md.

    Tables are relative to lpt, which runs with any solvers.

    Every solver works in a process of its own. One that crashes, exits or takes longer than --timeout loses that plan,
    which is recorded as an error, and the run goes on.

    --engine solves several tasks at once: 'loky' in processes of this machine, 'ray' on a Ray cluster, where a node
    that measures does so one task at a time, with all its cores. The records are the same, in another order. Times of
    solvers are those of a machine on which others work, too. A worker that is lost is replaced and its task done again.

    --resume: 'missing' solves what has no record (default), 'all' starts afresh and moves the old records aside. A
    stored plan is used again even if the code of its solver has changed since.

    Exit code 1 when a solver raised or returned nonsense, when a plan could not be scored, or when the solvers that
    were asked for solved nothing; a task that a solver found no feasible plan for is an outcome and shows as its
    success rate.
    """
    suite = load_suite(suite_name)
    track = _choose_track(suite, cost, oracle)
    out = out or Path("results") / f"{suite.name}-{track.judge.cost.replace(':', '.')}"
    specs = [_solver_spec(text) for text in solvers or suite.solvers or DEFAULT_SOLVERS]
    asked = {spec.title for spec in specs}
    if BASE not in asked:
        # Tables are relative to its costs, and a task that a solver fails counts its plan.
        specs.append(SolverSpec(BASE))
    try:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
            results = evaluate(
                suite,
                specs,
                out=out,
                track=track,
                seeds=list(seeds) or [0],
                limit=limit,
                resume=resume,
                time_limit_s=time_limit,
                timeout_s=timeout,
                isolate=isolate,
                engine=make_engine(engine, workers=workers, address=address),
                progress=not as_json,
            )
    except KeyboardInterrupt:
        say(_how_to_continue(out))
        return INTERRUPTED
    return _report(results, asked, out, as_json)


def _solver_spec(text: str) -> SolverSpec:
    """Read e.g. "narrow=neuroshard,beam_width=1": a label and what it stands for; the label may be left out.

    Raises:
        InputError: as `parse_spec`, nothing stands before or after the first "=", or a class before it.
    """
    first, comma, rest = text.partition(",")
    label, equals, name = first.partition("=")
    if not equals:
        return SolverSpec(*parse_spec(text))
    if not label or not name:
        raise InputError(f"'{text:.80}': expected [LABEL=]{NOTATION}")
    if ":" in label:  # module:Class(KEY=VALUE), module:Class KEY=VALUE
        raise InputError(f"'{text:.80}': expected [LABEL=]{NOTATION}: a comma goes before every setting")
    return SolverSpec(*parse_spec(name + comma + rest), label)


def _report(results: Sequence[Result], asked: Collection[str], out: Path, as_json: bool) -> int:
    """Rank what a folder holds, write and print the table, and return the exit code of these results of the run."""
    records = records_file(out) or out / RECORDS
    rankings = [rank(board) for board in load_boards([records])]
    write_whole(out / TABLE, render(rankings, "md") + "\n")
    files = {"records": str(records), "table": str(out / TABLE)}
    if (out / ERRORS).exists():
        files["tracebacks"] = str(out / ERRORS)
    failures = [r for r in results if r.status in ("error", "unmeasured")]
    if as_json:
        print_json({"rankings": [to_dict(r) for r in rankings], "files": files, "failures": len(failures)})
    else:
        print(render(rankings))
        lacking = [r for r in results if r.status != "ok"]
        for (solver, status), times in Counter((r.solver, r.status) for r in lacking).items():
            first = next(r for r in lacking if (r.solver, r.status) == (solver, status))
            more = f"; {times - 1} more {status}, see {records}" if times > 1 else ""
            say(f"shardgym: {solver} on task {first.task_index}, {status}: {first.reason}{more}")
        print("\n" + "\n".join(f"{what}: {path}" for what, path in files.items()))
    return 1 if failures or not any(r.status == "ok" and r.solver in asked for r in results) else 0


def _choose_track(suite: Suite, cost: str | None, oracle: str | None) -> Track:
    """Return judge and oracle: the suite's, unless the command line names others."""
    judge, settings = (None, {}) if cost is None else parse_spec(cost)
    track = suite.track(judge)
    judge_choice = CostChoice(judge, settings) if judge is not None and settings else track.judge
    return Track(judge_choice, track.oracle if oracle is None else CostChoice(*parse_spec(oracle)))


def _how_to_continue(out: Path) -> str:
    info = RunInfo.beside(out) if out.exists() else None
    if info is None:
        return "shardgym: interrupted before the first record"
    records = records_file(out)
    done = 0 if records is None else len(read_records(records))
    total = info.num_tasks * len(info.solvers) * len(info.seeds)
    return f"shardgym: interrupted with {done} of {total} records in {out}; the same command continues"


@click.command("leaderboard", cls=Command)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--suite", "suite_name", metavar="NAME", help="Only this suite.")
@click.option(
    "--format", "table_format", type=OneOf("format", (*FORMATS, HTML)), default="text",
    help=f"{', '.join(FORMATS)}, or {HTML}: a page with charts, which needs plotly.",
)  # fmt: skip
@click.option("--details", is_flag=True, help="Performance profiles below the tables.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write there, and print the name.")
@json_option
def leaderboard(
    paths: tuple[str, ...],
    suite_name: str | None,
    table_format: str,
    details: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Print ranked tables from stored records.

    PATH is a folder of runs, or a records file; without one it is the folder results. Every folder has a table of its
    own: solvers that are to share one run into one folder.

    --format html makes one file that needs no network: tables to sort and filter, costs with their intervals, and cost
    against solving time.
    """
    rankings = [rank(board) for board in load_boards(paths or ("results",), suite_name)]
    if as_json:
        print_json([to_dict(ranking) for ranking in rankings])
        return 0
    text = render_page(rankings) if table_format == HTML else render(rankings, table_format, details=details)
    if out is None:
        print(text)
    else:
        write_whole(out, text)
        print(out)
    return 0


@click.command("verify", cls=Command, epilog=RULE)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--cost", "costs", multiple=True, metavar="MODULE:CLASS", help="Your judge that records may name; repeatable."
)
@json_option
def verify(paths: tuple[str, ...], costs: tuple[str, ...], as_json: bool) -> int:
    """Score stored plans again and compare with their records.

    PATH is a folder of runs, or a records file.

    Printed are the records that disagree, counts of every file, and the verdict. Only data are read: a judge that does
    not come with shardgym is imported where --cost names it. Exit code 1 when any record disagrees or is damaged, or
    when nothing could be verified.
    """
    with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
        report = verify_records(paths, costs=costs, progress=not as_json)
    if as_json:
        print_json(report.to_dict())
    else:
        print("\n".join(report.lines()))
    return 0 if report.ok else 1
