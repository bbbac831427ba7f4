"""Drawing suites in which solvers differ."""

import pytest
import yaml

from shardgym import load_suite, make_solver

GROUP = {
    "name": "few", "count": 1, "topology": "cpu", "num_devices": 2, "num_tables": [4, 6], "dims": [16, 64],
    "max_total_bytes": 2**29, "fullness": 0.5,
}  # fmt: skip
TASKS = {"kind": "drawn", "seed": 5, "pool": "synthetic-2021", "scale": 8, "batch_size": 8192, "groups": [GROUP]}
SUITE = {"description": "d", "judge": "fbgemm", "oracle": "simulator", "tasks": TASKS}


@pytest.fixture
def draw(tool, tmp_path):
    """Draw a suite, and return its text and its tasks."""

    def drawn(*options, **tasks):
        path = tmp_path / "own.yaml"
        path.write_text("# A comment.\n" + yaml.safe_dump(SUITE | {"tasks": TASKS | tasks}, sort_keys=False))
        assert tool.main(["draw", str(path), *options]) == 0
        return path.read_text(), load_suite(path)

    return drawn


def test_solvers_differ_on_what_is_drawn(draw, tool):
    text, suite = draw(seed=6)
    assert text.startswith("# A comment.\ndescription: d\n")
    (task,) = suite
    for cost in tool.predicted_costs(suite):
        best = make_solver("neuroshard_plus", kicks=16).solve(task, tool.predicted_costs(suite)[0])
        rule_ms, best_ms = (answer.total_ms for answer in cost.evaluate(task, [tool.lpt(task, cost), best]))
        assert rule_ms >= 1.1 * best_ms


def test_each_solver_of_a_ladder_is_worse_than_the_next(draw, tool):
    _, suite = draw("--ladder", "random,lpt,neuroshard_plus", "--gap", "0.05", groups=[GROUP | {"num_devices": 4}])
    (task,) = suite
    costs = tool.predicted_costs(suite)
    plans = [make_solver(name).solve(task, costs[0]) for name in ("random", "lpt", "neuroshard_plus")]
    for cost in costs:
        random, rule, best = (answer.total_ms for answer in cost.evaluate(task, plans))
        assert random >= 1.05 * rule
        assert rule >= 1.05 * best


def test_draws_are_kept_where_sharding_types_matter(draw, tool):
    group = GROUP | {"num_devices": 8, "num_tables": [8, 20], "dims": [4, 8], "fullness": 0.7}
    _, suite = draw("--kinds", "--larger-than-a-device", groups=[group])
    (task,) = suite
    assert tool.largest_bytes(task) > max(task.capacity_bytes)
    assert tool.verdict_on_kinds(task, 0.1, *tool.predicted_costs(suite)) in (tool.KEPT, tool.KEPT_UNCUT)


def test_digests_are_written_and_replaced_only_with_the_option(tool, tmp_path, monkeypatch, capsys):
    shipped = tool.digests_path("tiny-v1").read_text()
    monkeypatch.setattr(tool, "digests_path", lambda name: tmp_path / name)
    assert tool.main(["digests", "tiny-v1"]) == 0
    assert (tmp_path / "tiny-v1").read_text() == shipped
    assert tool.main(["digests", "tiny-v1"]) == 0
    assert "unchanged" in capsys.readouterr().out
    (tmp_path / "tiny-v1").write_text("other\n")
    assert tool.main(["digests", "tiny-v1"]) == 1
    assert tool.main(["digests", "tiny-v1", "--replace"]) == 0
    assert (tmp_path / "tiny-v1").read_text() == shipped
