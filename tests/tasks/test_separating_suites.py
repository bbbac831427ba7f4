"""Chosen suites: as full as they say, inside of what the simulator knows, and separating solvers or kinds of plans."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import pytest

from shardgym.evaluation.solver import make_solver
from shardgym.tasks.suites import load_suite

ROOT = Path(__file__).parents[2]


@functools.cache
def shipped(name):
    return load_suite(name)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("draw_suite")


@pytest.mark.repository
def test_the_rule_is_a_tenth_behind_a_search(tool):
    suite = shipped("tight4-v2")
    task, (oracle, judge) = suite[2], tool.predicted_costs(suite)
    assert tool.verdict_on(task, 0.1, oracle, judge) in (tool.KEPT, tool.KEPT_UNSOLVED)


@pytest.mark.repository
@pytest.mark.parametrize(("name", "index"), [("rows8-v1", 7), ("nodes16-v1", 0)])
def test_columns_alone_are_a_tenth_slower_than_plans_of_any_kind(tool, name, index):
    task, (oracle, judge) = shipped(name)[index], tool.predicted_costs(shipped(name))
    plan = make_solver("neuroshard_plus", kicks=16).solve(task, oracle)
    assert {plan.kind_of(table.name, task) for table in task.tables} & {"row_wise", "table_row_wise", "grid_shard"}
    by_columns = make_solver("neuroshard_plus", kicks=16, sharding_types=[]).solve(task, oracle)
    of_columns, of_any = (answer.total_ms for answer in judge.evaluate(task, [by_columns, plan]))
    assert of_columns >= 1.1 * of_any
