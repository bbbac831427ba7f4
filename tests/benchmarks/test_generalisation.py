"""The splits of the zero-shot benchmark, and what its table says."""

from __future__ import annotations

import numpy as np
import pytest

from shardgym import load_suite, make_solver
from shardgym.errors import NoFeasiblePlanError
from shardgym.pools import load_pool
from shardgym.solver import weights_that_ship

pytestmark = pytest.mark.repository


@pytest.fixture
def generalisation(script):
    return script("generalisation")


def test_axes_differ_from_training_in_one_thing_and_hold_no_table_of_the_train_half(generalisation):
    tasks = {axis: generalisation.tasks_of(axis, 6) for axis in generalisation.AXES}
    usual = tasks.pop("as in training")
    groups = load_suite(generalisation.SUITE).source.groups
    widths = {dim for group in groups for dim in group.dims}
    fullness = {axis: np.mean([t.total_bytes / t.total_capacity_bytes for t in own]) for axis, own in tasks.items()}
    assert {t.num_devices for t in usual} == {4}
    assert {t.num_devices for t in tasks["more devices"]} == {8}
    assert min(t.num_tables for t in tasks["more tables"]) > max(group.num_tables[1] for group in groups)
    assert fullness["tighter memory"] > 0.75 > 0.55 > fullness["more tables"]
    assert not widths & {table.embedding_dim for t in tasks["other widths"] for table in t.tables}
    for axis, own in tasks.items():
        train, _ = load_pool("synthetic-2022" if axis == "other skew" else "synthetic-2021").split()
        assert not {table.name for table in train} & {table.name for t in own for table in t.tables}
    suite = {task.digest for task in load_suite(generalisation.SUITE)}
    assert not suite & {task.digest for own in (usual, *tasks.values()) for task in own}


def test_policies_ship_for_four_devices(generalisation):
    shipped = weights_that_ship()
    assert all(suite in shipped[name] for name, suite in generalisation.POLICIES.items())
    [solver] = generalisation.policy("ppo_columns", range(1))
    task = generalisation.tasks_of("more devices", 1)[0]
    assert {shard.devices[0] for shard in solver.solve(task, generalisation.make_cost("simulator")).shards} == set(
        range(8)
    )


def test_failures_count_as_the_base_and_are_told(generalisation, monkeypatch):
    class Never:
        def solve(self, task, cost, seed=0):
            raise NoFeasiblePlanError("never")

    def make(name, **settings):
        return Never() if name == "lookahead" else make_solver("lpt")

    monkeypatch.setattr(generalisation, "make_solver", make)
    rows = generalisation.table({"as in training": generalisation.tasks_of("as in training", 2)}, range(1))
    found = {row["solver"]: row["as in training"] for row in rows}
    assert found.pop("lookahead") == "1.000 (100% failed)"
    assert set(found.values()) == {"1.000"}
