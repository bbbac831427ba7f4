"""Ratios of plans; greedy rules stand for TorchRec's planner."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shardgym import load_suite, make_cost, make_solver


def cost_of(solver, task, cost):
    return cost.evaluate(task, [make_solver(solver).solve(task, cost)])[0].total_ms


def test_ratios_are_to_every_variant_and_to_the_best_of_them(script, monkeypatch):
    planner = script("torchrec_planner")
    monkeypatch.setattr(planner, "THEIRS", ("size_greedy", "lpt"))
    monkeypatch.setattr(planner, "OURS", "dim_greedy")
    task, rating = load_suite("tiny-v1")[0], make_cost("torchrec_rating")
    with ThreadPoolExecutor(1) as workers:
        first, second = planner.compare(task, workers)
    assert (first["cost"], second["cost"]) == ("torchrec_rating", "roofline")
    ratios = [cost_of("dim_greedy", task, rating) / cost_of(name, task, rating) for name in planner.THEIRS]
    assert [first["over size_greedy"], first["over lpt"]] == pytest.approx(ratios)
    assert first["over best"] == pytest.approx(max(ratios))
