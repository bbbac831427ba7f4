"""What stands below a table, in three lines: judge, oracle, seeds; failures; and what to be careful of."""

from __future__ import annotations

from collections import defaultdict

from shardgym.costs.base import registered_class
from shardgym.costs.simulator.model_card import shipped_agreement
from shardgym.evaluation.result import Result
from shardgym.leaderboard.boards import Board
from shardgym.leaderboard.ranking import BASE, Ranking
from shardgym.leaderboard.statistics import MIN_TASKS

#: Explains every column and rule.
PAGE = "docs/boards.md"


def footer(ranking: Ranking, link: str = PAGE) -> list[str]:
    """Return what stands below the table of a ranking; `link` is where columns are explained."""
    where = f"Columns, ranks and intervals: {link}; performance profiles: shardgym leaderboard --details."
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
    limit = "" if run.time_limit_s is None else f"Time limit per plan: {run.time_limit_s:g} s. "
    judge = f"Judge: {run.judge} {run.judge_version}{on}. Oracle: {run.oracle}. "
    return f"{judge}{limit}Solvers ran with {shown}; {base}."


def _failures(ranking: Ranking) -> list[str]:
    """Say how many failed and what that counts, and how few tasks there are."""
    records = ranking.board.results
    failed = sum(result.status != "ok" for result in records)
    counted = (
        f", counted as the plan of {BASE}" if ranking.has_base else ", which count nothing: who failed has no rank"
    )
    rules = [f"Failed: {failed} of {len(records)} records{counted if failed else ''}."]
    num_tasks = ranking.board.num_tasks
    if ranking.num_tasks < num_tasks:
        rules.append(f"Left out: {num_tasks - ranking.num_tasks} of {num_tasks} tasks, of which {BASE} has no plan.")
    if ranking.num_tasks < MIN_TASKS:
        rules.append(f"Fewer than {MIN_TASKS} tasks: no ranks, no intervals.")
    return rules


def cautions(board: Board) -> list[str]:
    """Return what a reader must know before comparing any two figures; mostly nothing."""
    run = board.run
    scored = [(result, result.cost) for result in board.results if result.cost is not None and result.cost.feasible]
    costs = [cost for _, cost in scored]
    sessions = {(result.task_index, cost.session) for result, cost in scored}
    learned = {(result.solver, result.seed, len(cost.per_device), result.weights_digest) for result, cost in scored}
    same = (run.judge, run.judge_settings) == (run.oracle, run.oracle_settings)
    measured = any("measured" in (cost.compute, cost.communication) or cost.noise for cost in costs)
    seeds = board.seeds
    picked = len(set(seeds.values())) > 1 and any(own != tuple(range(len(own))) for own in seeds.values())
    told = [
        (same and costs and not measured,
         "Judge and oracle are the same model: solvers that query it are compared in a circle."),
        (measured and any(cost.communication == "modelled" for cost in costs),
         "Exchanges were modelled, not measured."),
        (len(sessions) > len({task for task, _ in sessions}),
         "WARNING: plans of one task were measured in different sessions, which may differ by drift."),
        (len(learned) > len({key[:3] for key in learned}),
         "WARNING: records of a solver with one seed and number of devices were made with different weights."),
        (picked, f"WARNING: solvers ran with different seeds: {_group_by_seeds(seeds)}."),
    ]  # fmt: skip
    settings = {result.solver: _made(result) for result in board.results if result.made_from or result.solver_settings}
    return [*_simulated(board), *(sentence for holds, sentence in told if holds), *settings.values()]


def _simulated(board: Board) -> list[str]:
    """Say what differences by a simulated judge mean, where it was held against measured boards."""
    judge = registered_class(board.run.judge)
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
