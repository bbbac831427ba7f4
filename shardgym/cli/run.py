"""run, leaderboard, verify: solvers on a suite, what came of it as tables and pages, and stored plans scored again."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from shardgym.cli.common import ABOVE_0, NOTATION, answer, aside, json_option, json_text, parse_spec, say, takes_engine
from shardgym.evaluation import Resume, SolverSpec, evaluate
from shardgym.evaluation import verify as verify_records
from shardgym.evaluation.result import RECORDS, Result, records_file
from shardgym.evaluation.runner import TIMEOUT_S
from shardgym.evaluation.store import ERRORS
from shardgym.evaluation.verify import RULE
from shardgym.files import write_whole
from shardgym.leaderboard import BASE, load_boards, rank, render
from shardgym.leaderboard.overall import overall, overall_to_dict, render_overall, shipped_boards
from shardgym.leaderboard.page import render_page
from shardgym.leaderboard.ranking import HEURISTICS
from shardgym.leaderboard.tables import FORMATS, to_dict
from shardgym.tasks.suites import load_suite
from shardgym.tasks.suites.spec import CostChoice, Track

DEFAULT_SOLVERS = ("random", *HEURISTICS, "neuroshard", "neuroshard_plus")
TABLE = "table.md"


@click.command("run")
@click.option("--suite", "suite_name", required=True, metavar="NAME", help="Name of a suite, or a suite file.")
@click.option(
    "--solver", "solvers", multiple=True, metavar="NAME",
    help=f"[LABEL=]{NOTATION}, registered name or module:Class; repeat for several, with labels if names are the same "
    f"(default: the suite's, else {', '.join(DEFAULT_SOLVERS)}).",
)  # fmt: skip
@click.option("--cost", metavar="NAME", help=f"The judge, {NOTATION} (default: the suite's).")
@click.option(
    "--oracle", metavar="NAME",
    help=f"The cost that solvers may query, {NOTATION} (default: the one that goes with the judge).",
)  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False), help="Folder of the records (default: results/SUITE-JUDGE).")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N tasks.")
@click.option(
    "--seed", "seeds", type=click.IntRange(0), multiple=True, default=[0], help="Seed of solvers; repeat for several."
)
@click.option("--time-limit", "time_limit_s", type=ABOVE_0, metavar="SECONDS", help="Limit, for solvers that take one.")
@click.option("--timeout", "timeout_s", type=ABOVE_0, default=TIMEOUT_S, metavar="SECONDS", help="Stop slower solvers.")
@click.option(
    "--isolate/--no-isolate", default=None,
    help="Run each solver in a process of its own, or all in this one, for debuggers (default: isolate, with fork).",
)  # fmt: skip
@click.option("--resume", type=click.Choice([*map(str, Resume)]), default="missing")
@takes_engine
@json_option
def run(
    suite_name: str,
    solvers: tuple[str, ...],
    cost: str | None,
    oracle: str | None,
    out: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run solvers on a suite and rank them.

    Every solver solves every task with the oracle. The judge, a cost model that solvers may not query, then scores all
    plans of the task together. Each task, solver and seed appends a record to DIRECTORY/records.jsonl as soon as the
    task is scored; a failure is a record, too. After an interruption, the same command resumes the run. At the end it
    prints the ranked table and writes it to DIRECTORY/table.md. Costs are relative to lpt, which always runs, too.

    Every solver works in a process of its own. One that crashes, exits or takes longer than --timeout loses that plan,
    which is recorded as an error, and the run continues.

    --engine solves several tasks at once: 'loky' in processes of this machine, 'ray' on a Ray cluster. --resume:
    'missing' solves what has no record, 'all' starts afresh and moves the old records aside.

    The exit code is 1 if a solver raised or returned no plan, if a plan could not be scored, or if the solvers that you
    named solved nothing. A task for which a solver finds no feasible plan is an outcome, and shows as failed.
    """
    suite = load_suite(suite_name)
    # The suite's, unless the command line names others.
    judge, of_judge = (None, {}) if cost is None else parse_spec(cost)
    track = suite.track(judge)
    judge_choice = CostChoice(judge, of_judge) if judge is not None and of_judge else track.judge
    track = Track(judge_choice, track.oracle if oracle is None else CostChoice(*parse_spec(oracle)))
    folder = Path(out or f"results/{suite.name}-{track.judge.cost.replace(':', '.')}")
    specs = [_solver_spec(text) for text in solvers or suite.solvers or DEFAULT_SOLVERS]
    asked = {spec.title for spec in specs}
    if BASE not in asked:
        # Tables are relative to its costs, and its plan counts where a solver fails.
        specs.append(SolverSpec(BASE))
    with aside(as_json):
        results = evaluate(suite, specs, out=folder, track=track, progress=not as_json, **settings)
    return _report(results, asked, folder, as_json)


def _solver_spec(text: str) -> SolverSpec:
    """Read e.g. "narrow=neuroshard,beam_width=1": a label, which may be left out, and what it stands for."""
    labelled = re.fullmatch(r"([^,:=]+)=(.*)", text, re.DOTALL)
    return SolverSpec(*parse_spec(labelled[2] if labelled else text), labelled[1] if labelled else "")


def _report(results: Sequence[Result], asked: Collection[str], out: Path, as_json: bool) -> int:
    """Rank what a folder holds, write and print the table, and return the exit code of these results of the run."""
    records = records_file(out) or out / RECORDS
    rankings = [rank(board) for board in load_boards([records])]
    write_whole(out / TABLE, render(rankings, "md") + "\n")
    files = {"records": str(records), "table": str(out / TABLE)}
    if (out / ERRORS).exists():
        files["tracebacks"] = str(out / ERRORS)
    failures = [r for r in results if r.status in ("error", "unmeasured")]
    page = {"rankings": [to_dict(r) for r in rankings], "files": files, "failures": len(failures)}
    answer(as_json, page, "\n".join([render(rankings), "", *(f"{what}: {path}" for what, path in files.items())]))
    lacking = [] if as_json else [r for r in results if r.status != "ok"]
    for (solver, status), times in Counter((r.solver, r.status) for r in lacking).items():
        first = next(r for r in lacking if (r.solver, r.status) == (solver, status))
        more = f"; {times - 1} more {status}, see {records}" if times > 1 else ""
        say(f"shardgym: {solver} on task {first.task_index}, {status}: {first.reason}{more}")
    return 1 if failures or not any(r.status == "ok" and r.solver in asked for r in results) else 0


@click.command("leaderboard")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--format", "table_format", type=click.Choice([*FORMATS, "html"]), default="text", help="html: with charts."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to this file, and print its name.")
@json_option
def leaderboard(paths: tuple[str, ...], table_format: str, out: Path | None, as_json: bool) -> int:
    """Print ranked tables from stored records.

    Without a PATH, print the overall table of the boards in the repository: the score of every solver over all measured
    suites, and beside it the scores by models.

    PATH is a folder of runs, or a records file. Every folder has a table of its own, so run solvers that you want to
    compare into one folder.

    --format html writes one file that works offline: tables to sort and filter, costs with their intervals, and cost
    against solving time.
    """
    page: Any
    if paths:
        rankings = [rank(board) for board in load_boards(paths)]
        text = render_page(rankings) if table_format == "html" else render(rankings, table_format)
        page = [to_dict(ranking) for ranking in rankings]
    elif table_format == "html":
        raise click.UsageError("--format html needs folders of boards, such as results")
    else:
        table = overall(shipped_boards())
        text, page = render_overall(table, table_format), overall_to_dict(table)
    text = json_text(page) if as_json else text
    if out is not None:
        write_whole(out, text)
    print(text if out is None else out)
    return 0


@click.command("verify", epilog=RULE)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--cost", "costs", multiple=True, metavar="MODULE:CLASS", help="A judge that records may name.")
@json_option
def verify(paths: tuple[str, ...], costs: tuple[str, ...], as_json: bool) -> int:
    """Score stored plans again and compare with their records.

    PATH is a folder of runs, or a records file.

    The command prints the records that disagree, counts for every file, and the verdict. It only reads data, and
    imports a judge that does not come with shardgym only if --cost names it. The exit code is 1 if any record disagrees
    or is damaged, or if nothing could be verified.
    """
    with aside(as_json):
        report = verify_records(paths, costs=costs, progress=not as_json)
    answer(as_json, report.to_dict(), "\n".join(report.lines()))
    return 0 if report.ok else 1
