"""What is to be said about a board: three lines under its table, and the notes that `--details` adds.

On judge, seeds, settings and weights of solvers, how the times came about, and failures. Every figure comes from the
records.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardgym.costs.base import registered_class
from shardgym.costs.plan_cost import UNFAMILIAR, PlanCost
from shardgym.costs.simulator.model_card import CLOSE, shipped_agreement
from shardgym.evaluation.result import Result
from shardgym.evaluation.solver import GROUP
from shardgym.leaderboard.boards import Board
from shardgym.leaderboard.details import agreement_of_measurements
from shardgym.leaderboard.ranking import BASE, Ranking
from shardgym.leaderboard.statistics import MIN_TASKS
from shardgym.records import canonical_json
from shardgym.registry import registered

#: Explains every column and rule.
PAGE = "docs/boards.md"

#: Solvers that take so many times their processor time, and at least so many seconds for a plan, had to wait.
_BUSY = 1.5
_BUSY_S = 0.1

#: Starts of notes that stand below every table.
_CAREFUL = ("WARNING", "Screening", "Non-default settings")


def footer(ranking: Ranking, link: str = PAGE, escape: Callable[[str], str] = str) -> list[str]:
    """Return what stands under a table, at most three lines.

    Args:
        ranking: what the table shows.
        link: where columns are explained.
        escape: makes plain text of what is said about the records.
    """
    board = ranking.board
    key = board.key
    oracles = " or ".join(sorted({result.oracle for result in board.results})) or "-"
    on = "" if key.hardware == key.judge else f" on {key.hardware}"
    scored = [result.cost for result in board.results if result.cost is not None and result.cost.feasible]
    if "modelled" not in on and scored and all(cost.compute == "modelled" for cost in scored):
        on += ", modelled"
    seeds = sorted({own for own in board.seeds.values() if own})
    shown_seeds = _format_seeds(seeds[0]) if len(seeds) == 1 else "seeds of their own" if seeds else "no seed"
    base = f"relative to {BASE}" if ranking.has_base else f"{BASE}, the base, has no cost here"
    judge = f"Judge: {key.judge} {key.judge_version}{on}. Oracle: {oracles}. Solvers ran with {shown_seeds}; {base}."
    where = f"Columns, ranks and intervals: {link}; more notes: shardgym leaderboard --details."
    failures = " ".join(_failure_rules(ranking))
    careful = map(escape, [*cautions(board), *floor_notes(ranking), *measurement_notes(ranking)])
    return [escape(judge), escape(failures), " ".join([*careful, where])]


def measurement_notes(ranking: Ranking) -> list[str]:
    """Say of joined measurements how far they agree: on solvers, and on the plans of a task; nothing of others."""
    board = ranking.board
    if len(board.measurements) == 1:
        return []
    column = {task: n for n, task in enumerate(board.tasks)}
    solvers = []
    means = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for row, costs in zip(ranking.rows, ranking.counted_ms, strict=True):
            logs = np.log(costs).mean(axis=0) - np.log(ranking.base_ms)
            of_each = [logs[[column[task] for task in tasks]].mean() for tasks in board.measurements.values()]
            if np.isfinite(of_each).all():
                solvers.append(row.solver)
                means.append(of_each)
    sizes = ", ".join(f"{len(tasks)} on {name}" for name, tasks in board.measurements.items())
    told = f"Measurements: {sizes}; a task counts once, as their mean"
    if len(solvers) < 2:
        return [f"{told}; no two solvers have costs in all of them."]
    table = np.array(means)
    spread = np.exp(np.ptp(table, axis=1)) - 1
    worst = int(spread.argmax())
    pairs = list(itertools.combinations(range(len(solvers)), 2))
    swapped = sum(np.ptp(np.sign(table[one] - table[other])) == 2 for one, other in pairs)
    said = (
        f"{told}. Relative to {BASE}, the means of a solver differ by at most {spread[worst]:.1%} between them "
        f"({solvers[worst]}), and {swapped} of {len(pairs)} pairs of solvers are in another order."
    )
    return [said, *_agreement_of_plans(board)]


def _agreement_of_plans(board: Board) -> list[str]:
    taus, alike = agreement_of_measurements(board)
    if not taus:
        return []
    close = f", and of pairs within {CLOSE:.0%} by one {np.mean(alike):.0%} are in the same order by the other"
    said = f"Of the plans of a task, tau of two measurements is {np.mean(taus):.2f} on average"
    return [f"{said}{close if alike else ''}."]


def floor_notes(ranking: Ranking) -> list[str]:
    """Name the learned solvers that do not beat one step of lookahead in their own environment."""
    behind = [row for row in ranking.rows if row.of_floor_interval is not None and not row.beats_floor]
    return [
        f"{row.solver} is learned and does not beat {row.floor}, which is not: {row.of_floor:.3f} of its cost "
        f"({row.of_floor_interval.low:.3f} .. {row.of_floor_interval.high:.3f})."
        for row in behind if row.of_floor_interval is not None
    ]  # fmt: skip


def _failure_rules(ranking: Ranking) -> list[str]:
    """Say how many failed and what that counts, and how few tasks there are."""
    records = ranking.board.results
    failed = sum(result.status != "ok" for result in records)
    what = ""
    if failed:
        what = (
            f", counted as the plan of {BASE}" if ranking.has_base else ", which count nothing: who failed has no rank"
        )
    rules = [f"Failed: {failed} of {len(records)} records{what}."]
    num_tasks = len(ranking.board.same_tasks)
    if ranking.num_tasks < num_tasks:
        rules.append(f"Left out: {num_tasks - ranking.num_tasks} of {num_tasks} tasks, of which {BASE} has no plan.")
    if ranking.num_tasks < MIN_TASKS:
        rules.append(f"Fewer than {MIN_TASKS} tasks: no ranks, no intervals.")
    elif math.isinf(ranking.detectable):
        solvers = sum(row.ranks is not None for row in ranking.rows)
        rules.append(f"{ranking.num_tasks} tasks are too few to tell any two of {solvers} solvers apart by rank.")
    elif not math.isnan(ranking.detectable):
        apart = f"{100 * (ranking.detectable - 1):.2g} %"
        rules.append(f"{ranking.num_tasks} tasks are few: two solvers must differ by some {apart} to differ in rank.")
    return rules


def cautions(board: Board) -> list[str]:
    """Return what a reader must know before comparing any two figures; mostly nothing."""
    found = _own_measure_notes(board)
    if board.clash is not None:
        found.append(f"The records of {board.place} alone, in no table with others of the same kind: {board.clash}.")
    others = [*_seed_notes(board), *_solver_notes(board), *_measurement_notes(board),
              *_time_notes(board)]  # fmt: skip
    return found + [note for note in others if note.startswith(_CAREFUL)]


def notes(ranking: Ranking) -> list[str]:
    """Return all notes on a board, one sentence or two each."""
    board = ranking.board
    found = [f"Settings of the judge: {_format_settings(json.loads(board.key.judge_settings))}."]
    of_board = [
        *_seed_notes(board), *_solver_notes(board), *board.repeats, *_simulator_notes(board),
        *_measurement_notes(board), *_time_notes(board),
    ]  # fmt: skip
    careful = cautions(board)
    return [*careful, *found, *(note for note in of_board if note not in careful), *_failure_notes(ranking)]


def _own_measure_notes(board: Board) -> list[str]:
    """Name the solvers whose judge is the cost model that they could query: their comparison is circular.

    Nobody is, by a judge that measures. Judge and oracle of a run are made by the same code, so with the same name and
    settings they have the same version.
    """
    own: list[str] = []
    maybe: list[str] = []
    for file in board.files:
        by_oracle = [r.solver for r in file.results if r.oracle == r.judge and r.cost is not None and _is_exact(r.cost)]
        info = file.info
        if info is None:
            # Records alone leave it open; but a run refuses a learned judge that is the oracle at once.
            maybe += by_oracle if not _is_learned(file.key.judge) else []
        elif info.oracle == info.judge and canonical_json(info.oracle_settings) == canonical_json(info.judge_settings):
            own += by_oracle
    consequence = "solvers that query it are compared in a circle"
    notes = []
    if own:
        notes.append(f"Judge and oracle{_of_solvers(own, board)} are the same model: {consequence}.")
    if maybe:
        notes.append(
            f"Judge and oracle{_of_solvers(maybe, board)} have the same name, and no run.json tells the oracle's "
            f"settings: if they are the judge's, {consequence}."
        )
    return notes


def _is_learned(judge: str) -> bool:
    cls = registered_class(judge)
    return cls is not None and cls.learned


def _is_exact(cost: PlanCost) -> bool:
    """Say whether a plan got a deterministic cost."""
    is_measured = "measured" in (cost.compute, cost.communication) or bool(cost.noise) or bool(cost.session)
    return cost.feasible and not is_measured


def _of_solvers(solvers: list[str], board: Board) -> str:
    """Name the solvers unless they are all that have a cost."""
    everyone = {result.solver for result in board.results if result.status == "ok"}
    return "" if everyone <= set(solvers) else f" of {', '.join(dict.fromkeys(solvers))}"


def _seed_notes(board: Board) -> list[str]:
    """Say with which seeds the plans were made, so that a picked seed is visible."""
    used: dict[str, set[int]] = defaultdict(set)
    for result in board.results:
        used[result.solver].add(result.seed)
    seeds = {solver: tuple(sorted(used[solver])) for solver in board.solvers if solver in used}
    if not seeds:
        return []
    several = any(len(own) > 1 for own in seeds.values())
    if len(set(seeds.values())) == 1:
        mean = "; a task's cost is the geometric mean over them" if several else ""
        notes = [f"Every solver ran with {_format_seeds(next(iter(seeds.values())))}{mean}."]
    else:
        mean = " A task's cost is the geometric mean over a solver's own seeds." if several else ""
        # Seeds that were not picked are those from 0 on, be they few or many.
        first_ones = all(own == tuple(range(len(own))) for own in seeds.values())
        start = "Solvers" if first_ones else "WARNING: solvers"
        notes = [f"{start} ran with different seeds: {_group_by_seeds(seeds)}.{mean}"]
    lacking = {solver: tuple(s for s in asked if s not in used[solver]) for solver, asked in board.seeds.items()}
    if any(lacking[solver] for solver in seeds):
        missing = _group_by_seeds({solver: own for solver, own in lacking.items() if own})
        notes.append(f"Asked for and without any record: {missing}.")
    return notes


def _group_by_seeds(seeds_of: Mapping[str, tuple[int, ...]]) -> str:
    """Return e.g. "seed 0 for random, dim_greedy; seeds 0, 1 for ppo"."""
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for solver, seeds in seeds_of.items():
        groups[seeds].append(solver)
    return "; ".join(f"{_format_seeds(seeds)} for {', '.join(solvers)}" for seeds, solvers in groups.items())


def _format_seeds(seeds: tuple[int, ...]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def _solver_notes(board: Board) -> list[str]:
    """Say of each solver with which settings and weights it was made, and warn where its records differ in them."""
    notes = []
    for solver in board.solvers:
        own = [r for r in board.results if r.solver == solver]
        distinct = list({r.recipe: r for r in own}.values())
        recipes = "; ".join(_format_recipe(result) for result in distinct)
        if len(distinct) > 1:
            notes.append(f"WARNING: records of {solver} were made with different settings: {recipes}.")
        elif distinct and distinct[0].made_from is not None:
            notes.append(f"{solver} is {recipes}.")
        elif distinct and distinct[0].solver_settings:
            # The name alone would be read as the solver that everybody has.
            what = f"Non-default settings: {solver} with" if solver in registered(GROUP) else f"Settings of {solver}:"
            notes.append(f"{what} {recipes}.")
        weights = {r.weights_digest: r for r in own if r.weights_digest}
        if weights:
            named = ", ".join(_format_weights(result) for result in weights.values())
            notes.append(f"{solver} is learned, weights {named}; time/plan is without training.")
        # A solver may have weights for every seed and number of devices.
        weights_of: dict[tuple[int, int], set[str]] = defaultdict(set)
        for result in own:
            if result.cost is not None:
                weights_of[result.seed, len(result.cost.per_device)].add(result.weights_digest)
        if any(len(digests) > 1 for digests in weights_of.values()):
            notes.append(
                f"WARNING: records of {solver} with one seed and number of devices were made with different weights."
            )
    return notes


def _format_weights(result: Result) -> str:
    """Return e.g. "0123456789ab (trained for 12.0 min)"."""
    seconds = result.training_time_s
    if seconds is None:
        return result.weights_digest[:12]
    duration = f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
    return f"{result.weights_digest[:12]} (trained for {duration})"


def _format_recipe(result: Result) -> str:
    """Return e.g. "neuroshard with beam_width=1", or the settings alone where `solver` is the name."""
    settings = _format_settings(result.solver_settings)
    if result.made_from is None:
        return settings
    return result.made_from if not result.solver_settings else f"{result.made_from} with {settings}"


def _format_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "none"


def _simulator_notes(board: Board) -> list[str]:
    """Report how well a simulated judge agrees with measurements, and which plans are outside of its training data."""
    if not _is_learned(board.key.judge):
        return []
    version = board.key.judge_version
    agreement = shipped_agreement(board.key.hardware)
    trust = agreement.sentence(version) if agreement is not None else None
    notes = [trust or "How well this judge agrees with measurements is not on record."]
    if agreement is not None and (caution := agreement.caution(version)):
        notes.append(caution)
    scored: Counter[str] = Counter()
    unfamiliar: Counter[str] = Counter()
    reasons: set[str] = set()
    for result in board.results:
        if result.cost is not None and result.cost.feasible:
            own = {note.removeprefix(f"{UNFAMILIAR}: ") for note in result.cost.notes if note.startswith(UNFAMILIAR)}
            scored[result.solver] += 1
            unfamiliar[result.solver] += bool(own)
            reasons |= own
    if not reasons:
        return [*notes, f"No plan was {UNFAMILIAR}."]
    counts = ", ".join(f"{solver} {count} of {scored[solver]}" for solver, count in unfamiliar.items() if count)
    return [*notes, f"Plans {UNFAMILIAR} ({', '.join(sorted(reasons))}): {counts}."]


def _measurement_notes(board: Board) -> list[str]:
    """Report which times were modelled, measured in several sessions, or noisy."""
    scored = [(r.task_index, r.cost) for r in board.results if r.cost is not None and r.cost.feasible]
    modelled = {task for task, cost in scored if cost.communication == "modelled"}
    sessions: dict[int, set[str]] = defaultdict(set)
    for task, cost in scored:
        sessions[task].add(cost.session)
    num_mixed = sum(len(own) > 1 for own in sessions.values())
    notes = []
    if modelled:
        notes.append(f"Communication was modelled, not measured, for {len(modelled)} of {len(board.tasks)} tasks.")
    if num_mixed:
        tasks = "1 task holds" if num_mixed == 1 else f"{num_mixed} tasks hold"
        notes.append(f"WARNING: {tasks} times of different measurement sessions, which may differ by drift.")
    noise = [cost.noise for _, cost in scored if cost.noise > 0]
    if noise:
        notes.append(f"Median standard error of a measured cost: {100 * statistics.median(noise):.1f} %.")
    of_judge = {note for _, cost in scored for note in cost.notes if not note.startswith(UNFAMILIAR)}
    return notes + [f"Note of the judge: {note}" for note in sorted(of_judge)]


def _time_notes(board: Board) -> list[str]:
    """Name the solvers whose times are those of a machine with other work, or of one that waited for something."""
    waited = []
    for solver in board.solvers:
        own = [(r.solve_time_s, r.cpu_time_s) for r in board.results if r.solver == solver and r.cpu_time_s]
        times = statistics.median(passed_s / busy_s for passed_s, busy_s in own) if own else 0.0
        if times > _BUSY and statistics.median(passed_s for passed_s, _ in own) >= _BUSY_S:
            waited.append(f"{solver} ({times:.1f})")
    if not waited:
        return []
    return [
        f"WARNING: times are those of a busy machine, or solvers waited: time/plan is more than {_BUSY:g} times the "
        f"processor time of {', '.join(waited)}."
    ]


def _failure_notes(ranking: Ranking) -> list[str]:
    """Count failures per solver, with the first reason, and plans that took clearly longer than the time limit."""
    limit = ranking.board.key.time_limit_s
    notes = [] if limit is None else [f"Time limit per plan: {limit:g} s."]
    for row in ranking.rows:
        num_late = sum(
            r.solver == row.solver and r.time_limit_s is not None and r.solve_time_s > 1.1 * r.time_limit_s + 0.1
            for r in ranking.board.results
        )
        if num_late:
            notes.append(f"{row.solver} overran the time limit {'once' if num_late == 1 else f'{num_late} times'}.")
        if row.failures:
            counts = ", ".join(f"{n} {status}" for status, n in sorted(row.failures.items()))
            first = next(r for r in ranking.board.results if r.solver == row.solver and r.status != "ok")
            why = f"first on task {first.task_index}: {first.reason}"
            notes.append(f"Records of {row.solver} without a cost: {counts}, {why}.")
    return notes
