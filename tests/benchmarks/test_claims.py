"""Claims against boards: who is compared with whom, on what tasks, and when a claim holds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shardgym.costs.base import PlanCost
from shardgym.leaderboard.boards import SolverResults

pytestmark = pytest.mark.repository


def results(solver, costs, records=()):
    """Results with these costs; NaN is a task that was not solved."""
    costs = np.array(costs, dtype=float)
    return SolverResults(solver, records, costs[None], np.isnan(costs)[None])


def record(task, compute, seed=0, solve_time_s=0.001, weights_digest="", cpu_time_s=None):
    """A record whose devices compute for so long forward, and half as long backward."""
    per_device = np.array([[ms, 7.0, 7.0, ms / 2] for ms in compute], dtype=float)
    return SimpleNamespace(
        task_index=task, seed=seed, status="ok", cost=PlanCost(per_device, "toy", "1", "none"),
        solve_time_s=solve_time_s, weights_digest=weights_digest, cpu_time_s=cpu_time_s,
    )  # fmt: skip


@pytest.fixture
def claims(script):
    return script("claims")


@pytest.fixture
def board(claims):
    """Return a function that makes a board of eight tasks in two groups."""

    def make(**solvers):
        groups = ["narrow"] * 4 + ["wide"] * 4
        return claims.BoardResults("toys", tuple(range(8)), groups, dict(solvers))

    return make


def test_the_best_rival_of_every_group_counts(claims, board):
    found = board(
        mine=results("mine", [10] * 8),
        theirs=results("theirs", [12] * 8),
        others=results("others", [14] * 4 + [11] * 4),
    )
    claim = claims.Claim("text", "mine", ("theirs", "others", "absent"), "up to 30 %", by_width=True)
    everything, narrow, wide = claims.check(claim, found)
    assert (everything["against"], everything["ahead"], everything["tasks"]) == ("theirs", "+20.0%", 8)
    assert everything["here"] == "yes, without absent"
    assert (narrow["against"], narrow["ahead"], narrow["here"]) == ("theirs", "+20.0%", "too few tasks, without absent")
    assert (wide["against"], wide["ahead"]) == ("others", "+10.0%")


def test_tasks_that_one_of_the_two_did_not_solve_are_left_out(claims, board):
    nan = float("nan")
    found = board(mine=results("mine", [10] * 7 + [nan]), theirs=results("theirs", [nan, 20] + [12] * 6))
    row = claims.compared(found, "mine", "theirs", "cost", np.ones(8, bool), 1.0)
    assert row["tasks"] == 6
    assert row["ahead"] == "+30.7%"  # (2 * 1.2**5)**(1 / 6)
    nothing = board(mine=results("mine", [10] * 4 + [nan] * 4), theirs=results("theirs", [nan] * 4 + [12] * 4))
    assert (
        claims.compared(nothing, "mine", "theirs", "cost", np.ones(8, bool), 1.0)["here"] == "no task that both solved"
    )


@pytest.mark.parametrize(
    ("theirs", "verdict"), [([12] * 8, "yes"), ([9] * 8, "no"), ([11, 9, 11, 9, 11, 9, 11, 9], "open")]
)
def test_the_interval_decides(claims, board, theirs, verdict):
    found = board(mine=results("mine", [10] * 8), theirs=results("theirs", theirs))
    assert claims.compared(found, "mine", "theirs", "cost", np.ones(8, bool), 1.0)["here"] == verdict


def test_a_rival_that_fails_often_is_not_the_best(claims, board):
    found = board(
        often=results("often", [float("nan")] * 2 + [1] * 6),
        always=results("always", [12] * 8),
        one=results("one", [13] * 8),
    )
    assert claims.best_of(["often", "one", "always"], found, "cost", np.ones(8, bool)) == "always"


def test_what_a_board_lacks_is_said(claims, board):
    (row,) = claims.check(claims.Claim("text", "mine", ("theirs",)), board(theirs=results("theirs", [1] * 8)))
    assert row["here"] == "the board lacks mine"
    (row,) = claims.check(claims.Claim("text", "mine", ("theirs",)), board(mine=results("mine", [1] * 8)))
    assert row["here"] == "the board lacks theirs"
    (row,) = claims.check_goal(board(neuroshard=results("neuroshard", [1] * 8)))
    assert row["here"] == "the board lacks a learned solver"


def test_balance_is_of_compute_alone_and_averaged_over_seeds(claims, board):
    records = [record(0, [1, 4]), record(0, [2, 4], seed=1), record(1, [0, 4])]
    found = claims.balance(results("mine", [10, 10, float("nan")], records), (0, 1, 2))
    np.testing.assert_allclose(found, [0.375, claims.LEAST_BALANCE, np.nan])
    even = results("even", [10] * 8, [record(n, [4, 4]) for n in range(8)])
    uneven = results("uneven", [10] * 8, [record(n, [2, 4]) for n in range(8)])
    row = claims.compared(board(even=even, uneven=uneven), "even", "uneven", "balance", np.ones(8, bool), 1.0)
    assert (row["ahead"], row["here"]) == ("+100.0%", "yes")


@pytest.mark.parametrize(
    ("ms", "seconds", "cpu_seconds", "verdict"),
    [
        (10.1, 0.004, None, "yes"), (10.3, 0.004, None, "no"), (10.1, 0.006, None, "yes, too slow"),
        (10.1, 0.006, 0.004, "yes"), (10.1, 0.004, 0.006, "yes, too slow"),
    ],
)  # fmt: skip
def test_the_goal_asks_for_cost_and_for_time(claims, board, ms, seconds, cpu_seconds, verdict):
    """Processor time counts where it is known."""
    records = [record(n, [1, 1], solve_time_s=seconds, weights_digest="ab", cpu_time_s=cpu_seconds) for n in range(8)]
    found = board(neuroshard=results("neuroshard", [10] * 8), policy=results("policy", [ms] * 8, records))
    (row,) = claims.check_goal(found)
    assert (row["solver"], row["here"]) == ("policy", verdict)


@pytest.mark.slow
def test_the_committed_boards_are_read(claims, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["claims.py", "--json"])
    assert claims.main() == 0
    assert '"NeuroShard ahead of the best of its time"' in capsys.readouterr().out
