"""The tool that bounds the plans of boards: what it writes, what it says of records, and stale bounds."""

import json

import pytest

from shardgym import EmbeddingTable, ShardingTask, Topology, evaluate
from shardgym.leaderboard import load_boards, rank, render


class Tasks:
    """Two tasks with a name."""

    name = "toys"

    def __len__(self):
        return 2

    def __getitem__(self, index):
        tables = tuple(EmbeddingTable(f"t{n}", 2000, 16, 4.0 + n) for n in range(3 + index))
        return ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30, device="h100"), 512)


@pytest.fixture
def board(tool, tmp_path, monkeypatch):
    """A folder with a run, and the tool."""
    monkeypatch.setattr(tool, "load_suite", lambda name: {"toys": Tasks()}[name])
    evaluate(
        Tasks(), ["lpt", "dim_greedy"], out=tmp_path, judge="gpu", oracle="roofline", isolate=False, progress=False
    )
    return tool, tmp_path


def test_bounds_are_below_all_plans_and_the_table_says_by_how_much(board, capsys):
    tool, folder = board
    assert tool.main([str(folder)]) == 0
    assert capsys.readouterr().out.startswith("3 tables, 2 devices: ")
    assert tool.problems(folder) == []
    (ranking,) = map(rank, load_boards([folder]))
    bounds = ranking.board.bounds
    assert set(bounds) == {task.digest for task in (Tasks()[0], Tasks()[1])}
    ratios = [result.total_ms / bounds[result.task_hash] for result in ranking.board.results if result.solver == "lpt"]
    assert min(ratios) >= 1
    assert "over bound" in render([ranking])
    assert f"{(ratios[0] * ratios[1]) ** 0.5:.3f}\n" in render([ranking])


def test_a_record_below_a_bound_and_another_bound_are_problems(board):
    tool, folder = board
    tool.main([str(folder)])
    path = folder / "bounds.json"
    content = json.loads(path.read_text())
    for wrong_ms, said in ((1e3, "/0 lpt seed 0 costs less: run "), (1e-3, " ms, but was 0.001 ms")):
        path.write_text(json.dumps(content | {"bounds_ms": dict.fromkeys(content["bounds_ms"], wrong_ms)}))
        (found,) = tool.problems(folder)
        assert said in found
