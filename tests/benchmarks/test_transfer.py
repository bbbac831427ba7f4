"""Tasks of known and unknown tables, and a fit of two steps that is tested on other sizes."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytestmark = pytest.mark.repository

TINY = ("dreamshard,collected_tasks=4,cost_updates=2,update_tasks=2", "--training-tasks", "6", "--tasks", "2", "--json")


@pytest.fixture
def transfer(script):
    return script("transfer")


@pytest.mark.parametrize(("unseen", "number"), [(0.0, 0), (0.25, 5), (1.0, 20)])
def test_a_share_of_the_tables_is_of_the_test_half(script, unseen, number):
    drawn = script("drawn_tasks")
    task = drawn.task_of_halves(4, (20, 20), unseen, np.random.default_rng(0))
    names = [{table.name for table in half} for half in drawn.pool_halves()]
    assert [sum(table.name in half for table in task.tables) for half in names] == [20 - number, number]
    assert len({table.name for table in task.tables}) == 20
    again = drawn.task_of_halves(4, (20, 20), unseen, np.random.default_rng(0))
    assert (task.num_devices, task.digest) == (4, again.digest)


def test_training_tasks_hold_no_table_of_the_test_half(script, transfer):
    rng = np.random.default_rng(0)
    test_half = {table.name for table in script("drawn_tasks").pool_halves()[1]}
    for _ in range(5):
        task = transfer.task_of_halves(*transfer.FITTED_ON, rng)
        assert not test_half & {table.name for table in task.tables}


def test_a_device_holds_the_largest_table(script, transfer):
    drawn = script("drawn_tasks")
    largest = max(table.num_embeddings for half in drawn.pool_halves() for table in half)
    task = transfer.task_of_halves(*transfer.FITTED_ON, np.random.default_rng(0))
    assert 4 * max(drawn.WIDTHS) * largest < min(task.topology.memory_bytes)


def test_what_is_fitted_is_tested_and_its_weights_give_the_same(transfer, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(transfer, "FITTED_ON", transfer.Setting(2, (3, 5), 0.0))
    monkeypatch.setattr(transfer, "TESTED_ON", (transfer.Setting(2, (3, 5)), transfer.Setting(3, (6, 6), 0.5)))
    monkeypatch.setattr(transfer, "RIVALS", ("lookup_greedy", "lpt"))
    rows = []
    for options in (["--steps", "2", "--out", str(tmp_path)], ["--weights", str(tmp_path)]):
        monkeypatch.setattr("sys.argv", ["transfer.py", *TINY, *options])
        assert transfer.main() == 0
        rows.append(json.loads(capsys.readouterr().out))
    for fitted, loaded in zip(*rows, strict=True):
        assert fitted | {"ms per plan": 0} == loaded | {"ms per plan": 0}
    assert [(row["devices"], row["unseen"], row["over"]) for row in rows[0]] == [
        (devices, unseen, rival) for devices, unseen in ((2, "100%"), (3, "50%")) for rival in transfer.RIVALS
    ]
    lines = transfer.wide(rows[0])
    assert [line["devices"] for line in lines] == [2, 3]
    assert lines[1]["over lpt"] == f"{rows[0][-1]['ratio']:.3f}"


def test_a_solver_that_learns_nothing_is_one_line(transfer, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["transfer.py", "lpt"])
    assert transfer.main() == 2
    assert capsys.readouterr().err == "solver 'lpt' learns nothing: it has no fit(tasks, cost, seed)\n"
