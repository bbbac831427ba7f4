"""Ratios of plans, and what counts as lost; greedy rules stand for TorchRec's planner."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shardgym import load_suite, make_cost, make_solver

pytestmark = pytest.mark.repository


@pytest.fixture
def planner(script, monkeypatch):
    module = script("torchrec_planner")
    monkeypatch.setattr(module, "THEIRS", ("size_greedy", "lpt"))
    monkeypatch.setattr(module, "OURS", "dim_greedy")
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda number, mp_context: ThreadPoolExecutor(number))
    return module


def cost_of(solver, task, cost):
    return cost.evaluate(task, [make_solver(solver).solve(task, cost)])[0].total_ms


def test_ratios_are_to_every_variant_and_to_the_best_of_them(planner):
    task, rating = load_suite("tiny-v1")[0], make_cost("torchrec_rating")
    rows = planner.compare({"dlrm4-v2": [task]})
    assert [row["cost"] for row in rows] == ["torchrec_rating", "roofline"]
    ratios = [cost_of("dim_greedy", task, rating) / cost_of(name, task, rating) for name in planner.THEIRS]
    assert [rows[0]["over size_greedy"], rows[0]["over lpt"]] == pytest.approx(ratios)
    assert rows[0]["over best"] == rows[0]["worst task"] == pytest.approx(max(ratios))
    assert rows[0]["lost"] == (max(ratios) > 1)


def test_a_suite_is_tried_evenly_and_without_hundreds_of_devices(planner):
    published = planner.spread(load_suite("published-v1"), 100)
    assert max(task.num_devices for task in published) == 64
    assert len(planner.spread(load_suite("tiny-v1"), 3)) == 3
    [task] = planner.groups(["300 tables, 8"], 1)["300 tables, 8 GPUs"]
    assert (task.num_tables, task.num_devices) == (300, 8)
