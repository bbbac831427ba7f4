"""leaderboard, plot: tables and figures of stored records."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from shardgym.cli.options import Command, OneOf, folder, json_option, open_cost
from shardgym.cli.output import print_json
from shardgym.files import write_whole
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.page import render_page
from shardgym.leaderboard.plots import PLOT_FORMATS, write_plots
from shardgym.leaderboard.tables import FORMATS, to_dict

HTML = "html"


@click.command("leaderboard", cls=Command)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--suite", "suite_name", metavar="NAME", help="Only this suite.")
@click.option(
    "--format", "table_format", type=OneOf("format", (*FORMATS, HTML)), default="text",
    help=f"{', '.join(FORMATS)}, or {HTML}: a page with charts and plans, which needs plotly.",
)  # fmt: skip
@click.option("--details", is_flag=True, help="Groups of tasks, performance profiles, pairs of solvers, and all notes.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write there, and print the name.")
@click.option("--also", "also_name", metavar="COST", help="A column of what this cost says of the plans, too.")
@json_option
def leaderboard(
    paths: tuple[str, ...],
    suite_name: str | None,
    table_format: str,
    details: bool,
    out: Path | None,
    also_name: str | None,
    as_json: bool,
) -> int:
    """Print ranked tables from stored records.

    PATH is a folder of runs, or a records file; without one it is the folder results.

    Records of different suites, judges or hardware go into different tables. Records of the same from several folders
    share one, unless two of the folders hold the same solver, task and seed, or different tasks under one index: none
    is preferred then, each of these folders has its own table, which names it and says why.

    --format html makes one file that needs no network: tables to sort and filter, cost against solving time, tasks,
    performance profiles, groups, and the plans themselves, two beside each other.
    """
    if table_format == HTML and (details or also_name is not None):
        raise click.UsageError("--format html goes without --details, which the page has, and without --also")
    rankings = [rank(board) for board in load_boards(paths or ("results",), suite_name)]
    with contextlib.nullcontext() if also_name is None else open_cost(also_name, None) as also:
        if as_json:
            print_json([to_dict(ranking, also) for ranking in rankings])
            return 0
        is_page = table_format == HTML
        text = render_page(rankings) if is_page else render(rankings, table_format, details=details, also=also)
    if out is None:
        print(text)
    else:
        write_whole(out, text)
        print(out)
    return 0


@click.command("plot", cls=Command)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--suite", "suite_name", metavar="NAME", help="Only this suite.")
@click.option(
    "--format", "file_format", type=OneOf("format", PLOT_FORMATS), default="svg", help=", ".join(PLOT_FORMATS)
)
@click.option("--out", type=folder, default="plots", help="Where the plots go.")
@json_option
def plot(paths: tuple[str, ...], suite_name: str | None, file_format: str, out: Path, as_json: bool) -> int:
    """Draw stored records: three plots for every table that leaderboard prints.

    PATH is a folder of runs, or a records file; without one it is the folder results.

    SUITE-JUDGE-profile: share of plans within a factor of the best one of their task. SUITE-JUDGE-pareto: cost against
    median solving time. SUITE-JUDGE-groups: cost by group of tasks, with intervals. Needs matplotlib.
    """
    rankings = [rank(board) for board in load_boards(paths or ("results",), suite_name)]
    files = [str(file) for ranking in rankings for file in write_plots(ranking, out, file_format)]
    if as_json:
        print_json({"files": files})
    else:
        print("\n".join(files))
    return 0
