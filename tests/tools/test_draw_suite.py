"""Drawing suites in which solvers differ, and the tables that say how much."""

from __future__ import annotations

import dataclasses
import importlib
import math
from pathlib import Path

import pytest
import yaml

from shardgym.errors import NoFeasiblePlanError
from shardgym.solver import make_solver
from shardgym.suites import load_suite
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.topology import Topology

pytestmark = pytest.mark.repository

GROUP = {
    "name": "few", "count": 1, "topology": "cpu", "num_devices": 2, "num_tables": [4, 6], "dims": [16, 64],
    "max_total_bytes": 2**29, "fullness": 0.5,
}  # fmt: skip
TASKS = {"kind": "drawn", "seed": 5, "pool": "synthetic-2021", "scale": 8, "batch_size": 8192, "groups": [GROUP]}
SUITE = {"description": "d", "judge": "fbgemm", "oracle": "simulator", "tasks": TASKS}


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Draw a suite, and return its text and its tasks."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    tool = importlib.import_module("draw_suite")

    def drawn(*options, **tasks):
        path = tmp_path / "own.yaml"
        path.write_text("# A comment.\n" + yaml.safe_dump(SUITE | {"tasks": TASKS | tasks}, sort_keys=False))
        assert tool.main(["draw", str(path), *options]) == 0
        return path.read_text(), load_suite(path)

    return drawn


@pytest.fixture
def separation(draw):
    return importlib.import_module("separation")


def test_the_same_seed_draws_the_same_tasks_and_solvers_differ_on_them(draw, separation):
    text, suite = draw()
    assert draw()[0] == text
    assert text.startswith("# A comment.\ndescription: d\n")
    oracle, judge = separation.predicted_costs(suite)
    for task in suite:
        found = separation.separation(task, oracle, judge)
        assert found.lpt_ms >= 1.1 * found.best_ms
        assert not separation.is_bound_by_a_table(task, oracle)
    other, more = draw("--seed", "6", "--tasks", "2")
    assert (len(more), more.source.spec.seed) == (2, 6)
    assert other != text
    assert {task.digest for task in more}.isdisjoint(task.digest for task in suite)


def test_draws_are_kept_where_sharding_types_matter(draw, separation):
    group = GROUP | {"num_devices": 8, "num_tables": [8, 20], "dims": [4, 8], "fullness": 0.7}
    _, suite = draw("--kinds", "--larger-than-a-device", groups=[group])
    (task,) = suite
    assert max(task.block_bytes(t, t.num_embeddings, t.embedding_dim) for t in task.tables) > max(task.capacity_bytes)
    oracle, judge = separation.predicted_costs(suite)
    best = judge.evaluate(task, [make_solver("neuroshard_plus", kicks=16).solve(task, oracle)])[0].total_ms
    columns = make_solver("neuroshard_plus", kicks=16, sharding_types=[])
    try:
        columns_ms = judge.evaluate(task, [columns.solve(task, oracle)])[0].total_ms
    except NoFeasiblePlanError:
        columns_ms = math.inf
    assert columns_ms >= 1.1 * best


def test_draws_that_do_not_suffice_are_an_error(draw, capsys):
    with pytest.raises(AssertionError):
        draw("--most", "1", "--tasks", "2")
    assert "few: " in capsys.readouterr().err


def test_a_table_that_no_cut_makes_short_enough_binds(separation):
    narrow = EmbeddingTable("narrow", 1000, 4, 200.0)
    others = [EmbeddingTable(f"t{n}", 1000, 16, 1.0) for n in range(3)]
    topology = Topology(num_devices=2, memory_bytes=2**30)
    task = ShardingTask((narrow, *others), topology, batch_size=8192)
    oracle = separation.make_cost("roofline")
    assert separation.is_bound_by_a_table(task, oracle)
    more = [dataclasses.replace(narrow, name=f"narrow {n}") for n in range(2)]
    assert not separation.is_bound_by_a_table(dataclasses.replace(task, tables=(narrow, *more)), oracle)


def test_tables_are_what_rows_say(separation, tmp_path):
    inf = math.inf
    rows = [
        separation.Separation(0, "a", 5, 12.0, False, 10.0, "neuroshard_plus", 5.0, 4.0, 11.0, 10.0, 15.0, 10.0),
        separation.Separation(1, "a", 9, 12.0, True, 10.0, "lpt", 5.0, 4.0, inf, 8.0, 12.0, 10.0),
        separation.Separation(2, "b", 7, inf, False, 10.0, "lpt", 4.0, 4.0, inf, 10.0, inf, 10.0),
    ]
    separation.write(rows, tmp_path / "own.csv")
    assert separation.read(tmp_path / "own.csv") == rows
    table = separation.table(rows, {"a": 7, "b": 4})
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert lines[2] == [
        "a", "2 of 7 draws", "5-9", "20.0% (least 20.0%)", "34.2% (least 20.0%)", "1 / 0", "25.0%",
        "10.0% (1 need them)", "11.8%",
    ]  # fmt: skip
    assert lines[3] == ["b", "1 of 4 draws", "7-7", "- (none)", "- (none)", "0 / 1", "0.0%", "- (1 need them)", "0.0%"]
    assert lines[4][:2] == ["all", "3 of 11 draws"]
    assert separation.table(rows, {}).splitlines()[2].split("|")[2].strip() == "2"
