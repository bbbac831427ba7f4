"""A ranking as text, as Markdown, or as JSON-ready data.

Below a table stand three lines: judge, oracle, seeds; failures; and what to be careful of.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from shardgym.costs.base import registered_class
from shardgym.costs.simulator.model_card import shipped_agreement
from shardgym.errors import UnknownNameError
from shardgym.evaluation.result import Result
from shardgym.leaderboard.boards import Board
from shardgym.leaderboard.ranking import BASE, Ranking, Row
from shardgym.leaderboard.statistics import MIN_TASKS
from shardgym.tasks.suites import shipped_suite

FORMATS = {"text": "simple", "md": "github"}

#: Explains every column and rule.
PAGE = "docs/boards.md"


class Column(NamedTuple):
    """A column of a table."""

    header: str  #: its name
    cells: list[str]  #: one per row; "-" where there is no figure
    optional: bool = False  #: left out where no row has a figure


def render(rankings: Sequence[Ranking], style: str = "text", *, link: str = PAGE) -> str:
    """Return tables with headings and footers.

    Args:
        rankings: one per table.
        style: "text" or "md".
        link: page that explains the columns.

    Raises:
        UnknownNameError: no such style.
    """
    if style not in FORMATS:
        raise UnknownNameError("format", style, FORMATS)
    heading, bullet = ("## ", "- ") if style == "md" else ("", "")
    parts = []
    for ranking in rankings:
        table = table_text(columns(ranking), style) if ranking.rows else "no solver"
        lines = "\n".join(bullet + line for line in footer(ranking, link))
        parts.append(f"{heading}{title(ranking)}\n\n{table}\n\n{lines}")
    return "\n\n".join(parts)


def title(ranking: Ranking) -> str:
    """Return e.g. "dlrm4-v2: 3 of 600 tasks, judged by fbgemm on cpu-amd-epyc-2c"."""
    run = ranking.board.run
    suite = shipped_suite(run.suite)
    size = run.num_tasks if suite is None else len(suite)
    number = str(size) if run.num_tasks == size else f"{run.num_tasks} of {size}"
    on = "" if run.hardware == run.judge else f" on {run.hardware}"
    place = "" if ranking.board.place is None else f", {ranking.board.place}"
    return f"{run.suite}: {number} task{'' if size == 1 else 's'}, judged by {run.judge}{on}{place}"


def columns(ranking: Ranking) -> list[Column]:
    """Return the columns of the table of a ranking."""
    rows = ranking.rows
    several = any(row.num_seeds > 1 for row in rows)
    found = [
        Column("ranks", ["-" if row.ranks is None else "-".join(map(str, sorted(set(row.ranks)))) for row in rows]),
        Column("solver", [row.solver for row in rows]),
        Column(f"vs {BASE}", [figure(row.relative, f"{row.relative:.3f}") for row in rows]),
        Column("95 % interval", [_interval(row) for row in rows], optional=True),
        Column("failed", [figure(row.success, f"{100 * (1 - row.success):.3g} %") for row in rows]),
        Column("seeds", [_seeds(row) if several else "-" for row in rows], optional=True),
        Column("mean ms", [figure(row.mean_ms, f"{row.mean_ms:.{2 if row.mean_ms >= 10 else 4}f}") for row in rows]),
        Column("time/plan", [figure(row.median_s, duration(row.median_s)) for row in rows]),
        Column("cpu/plan", [figure(row.median_cpu_s, duration(row.median_cpu_s)) for row in rows], optional=True),
        Column("over bound", [figure(row.over_bound, f"{row.over_bound:.3f}") for row in rows], optional=True),
        Column("complete", [_completeness(row) for row in rows], optional=True),
    ]
    return [column for column in found if not column.optional or set(column.cells) != {"-"}]


def table_text(shown: Sequence[Column], style: str) -> str:
    """Return columns as a table of text or Markdown."""
    align = ["left" if column.header == "solver" else "right" for column in shown]
    cells = zip(*(column.cells for column in shown), strict=True)
    headers = [column.header for column in shown]
    return tabulate(cells, headers, FORMATS[style], colalign=align, disable_numparse=True)


def to_dict(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking JSON-ready; figures that do not exist are None."""
    run = ranking.board.run
    return {
        "suite": run.suite,
        "judge": run.judge,
        "judge_version": run.judge_version,
        "hardware": run.hardware,
        "folder": str(ranking.board.folder),
        "num_tasks": run.num_tasks,
        "num_left_out": run.num_tasks - ranking.num_tasks,
        "base": BASE if ranking.has_base else None,
        "rows": [json_ready(vars(row)) for row in ranking.rows],
        "footer": footer(ranking),
    }


def json_ready(value: Any) -> Any:
    """Return data with lists for tuples and None for NaN."""
    if isinstance(value, dict):
        return {name: json_ready(member) for name, member in value.items()}
    if isinstance(value, tuple):
        return [json_ready(member) for member in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def figure(value: float, text: str) -> str:
    """Return what stands in a table for a number: the text, or "-" where it is NaN."""
    return "-" if math.isnan(value) else text


def duration(seconds: float) -> str:
    """Return e.g. "12 ms" or "1.50 s"."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.2f} s"


def _interval(row: Row) -> str:
    interval = row.relative_interval
    return "-" if interval is None else f"{interval.low:.3f} .. {interval.high:.3f}"


def _seeds(row: Row) -> str:
    return str(row.num_seeds) + ("" if math.isnan(row.seed_spread) else f" (±{100 * row.seed_spread:.1f} %)")


def _completeness(row: Row) -> str:
    """Return the share of records that exist; nothing if all do."""
    return "-" if row.completeness == 1 or math.isnan(row.completeness) else f"{100 * row.completeness:.4g} %"


def footer(ranking: Ranking, link: str = PAGE) -> list[str]:
    """Return what stands below the table of a ranking; `link` is where columns are explained."""
    where = f"Columns, ranks and intervals: {link}."
    return [_judge(ranking), " ".join(_failures(ranking)), " ".join([*cautions(ranking.board), where])]


def _judge(ranking: Ranking) -> str:
    board = ranking.board
    run = ranking.board.run
    on = "" if run.hardware == run.judge else f" on {run.hardware}"
    costs = [result.cost for result in board.results if result.cost is not None and result.cost.feasible]
    if "modelled" not in on and costs and all(cost.compute == "modelled" for cost in costs):
        on += ", modelled"
    shown = " or ".join(_format_seeds(own) for own in sorted(set(board.seeds.values()))) or "no seed"
    base = f"relative to {BASE}" if ranking.has_base else f"{BASE}, the base, has no cost here"
    limit = ""
    if run.time_limit_s is not None:
        late = Counter(result.solver for result in board.results if result.solve_time_s > 1.1 * run.time_limit_s)
        of_solvers = ", ".join(f"{solver} {number}" for solver, number in late.items())
        of_all = f"{late.total()} of {len(board.results)} records ({of_solvers})"
        over = f", exceeded by over 10 % in {of_all}" if late else ""
        limit = f"Time limit per plan: {run.time_limit_s:g} s{over}. "
    is_learned = getattr(registered_class(run.judge), "learned", False)
    other = ", another network" if is_learned and run.judge == run.oracle else ""
    judge = f"Judge: {run.judge} {run.judge_version}{on}. Oracle: {run.oracle}{other}. "
    return f"{judge}{limit}Solvers ran with {shown}; {base}."


def _failures(ranking: Ranking) -> list[str]:
    """Say how many records failed and how that counts, and whether there are too few tasks."""
    records = ranking.board.results
    failed = sum(result.status != "ok" for result in records)
    counted = (
        f", counted as the plan of {BASE}" if ranking.has_base else ", not counted: solvers that failed have no rank"
    )
    rules = [f"Failed: {failed} of {len(records)} records{counted if failed else ''}."]
    num_tasks = ranking.board.num_tasks
    if ranking.num_tasks < num_tasks:
        missing = num_tasks - len({result.task_index for result in records if result.solver == BASE})
        left_out = num_tasks - ranking.num_tasks - missing
        if missing:
            rules.append(f"Left out: {missing} of {num_tasks} tasks, for which {BASE} has no record yet.")
        if left_out:
            rules.append(f"Left out: {left_out} of {num_tasks} tasks, for which {BASE} has no plan.")
    if any(row.completeness < 1 for row in ranking.rows):
        rules.append(f"Solvers that lack records have no rank: run them again, with --limit {num_tasks}.")
    if ranking.num_tasks < MIN_TASKS:
        rules.append(f"Fewer than {MIN_TASKS} tasks: no ranks, no intervals.")
    return rules


def cautions(board: Board) -> list[str]:
    """Return what a reader must know before comparing any two figures; usually nothing."""
    run = board.run
    scored = [(result, result.cost) for result in board.results if result.cost is not None and result.cost.feasible]
    costs = [cost for _, cost in scored]
    sessions = {(result.task_index, cost.session) for result, cost in scored}
    learned = {(result.solver, result.seed, len(cost.per_device), result.weights_digest) for result, cost in scored}
    weights = Counter(key[:3] for key in learned)
    refitted = ", ".join(sorted({key[0] for key, number in weights.items() if number > 1}))
    same = (run.judge, run.judge_settings) == (run.oracle, run.oracle_settings)
    measured = any("measured" in (cost.compute, cost.communication) or cost.noise for cost in costs)
    modelled = measured and any(cost.communication == "modelled" for cost in costs)
    processors = sorted({result.versions.get("processor", "unknown") for result in board.results})
    sources = Counter(solver for solver, _ in {(result.solver, result.source_digest) for result in board.results})
    versions = sorted(solver for solver, number in sources.items() if number > 1)
    models = [cost for cost in costs if "measured" not in (cost.compute, cost.communication)]
    noted = Counter(note for cost in models for note in cost.notes)
    notes = "; ".join(f"{note} ({number} records)" for note, number in noted.items())
    seeds = board.seeds
    picked = len(set(seeds.values())) > 1 and any(own != tuple(range(len(own))) for own in seeds.values())
    told = [
        (same and costs and not measured,
         "Judge and oracle are the same model, which favours solvers that query it."),
        (modelled, _modelled_exchanges(board) if modelled else ""),
        (len(sessions) > len({task for task, _ in sessions}),
         "WARNING: plans of one task were measured in different sessions, which may differ by drift."),
        (bool(refitted),
         f"WARNING: records of {refitted} with one seed and number of devices were made with different weights."),
        (len(processors) > 1,
         f"Solvers ran on different processors ({', '.join(processors)}), so times per plan are not comparable."),
        (bool(versions), f"Records of {', '.join(versions)} come from several versions of the source file."),
        (picked, f"WARNING: solvers ran with different seeds: {_group_by_seeds(seeds)}."),
        (bool(notes), f"Notes of the judge: {notes}."),
    ]  # fmt: skip
    settings = {result.solver: _made(result) for result in board.results if result.made_from or result.solver_settings}
    return [*simulated_caution(board), *(sentence for holds, sentence in told if holds), *settings.values()]


def _modelled_exchanges(board: Board) -> str:
    """Say for which links exchanges were modelled; they need not be those of the measured hardware."""
    task = next((board.task(r.task_index) for r in board.results if r.cost is not None and r.cost.feasible), None)
    if task is None:
        return "Exchanges were modelled, not measured."
    return (
        f"Compute was measured on {board.run.hardware}; exchanges were modelled, not measured, for the links that the "
        f"suite states: '{task.topology.interconnect}' of {task.topology.device} devices."
    )


def simulated_caution(board: Board) -> list[str]:
    """Say what differences by a simulated judge mean, if it was compared with measured boards on tasks like these."""
    judge = registered_class(board.run.judge)
    costs = [result.cost for result in board.results if result.cost is not None and result.cost.feasible]
    outside = sum(any(note.startswith("outside of ") for note in cost.notes) for cost in costs)
    if outside > len(costs) / 2:
        return []
    agreement = shipped_agreement(board.run.hardware) if judge is not None and judge.learned else None
    caution = None if agreement is None else agreement.sentence(board.run.judge_version)
    return [] if caution is None else [caution]


def _made(result: Result) -> str:
    """Return e.g. "narrow is neuroshard with beam_width=1."."""
    settings = ", ".join(f"{name}={value}" for name, value in result.solver_settings.items())
    if result.made_from is None:
        return f"{result.solver} ran with {settings}."
    return f"{result.solver} is {result.made_from}{f' with {settings}' if settings else ''}."


def _group_by_seeds(seeds_of: dict[str, tuple[int, ...]]) -> str:
    """Return e.g. "seed 0 for random, dim_greedy; seeds 0, 1 for ppo"."""
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for solver, seeds in seeds_of.items():
        groups[seeds].append(solver)
    return "; ".join(f"{_format_seeds(seeds)} for {', '.join(solvers)}" for seeds, solvers in groups.items())


def _format_seeds(seeds: tuple[int, ...]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
