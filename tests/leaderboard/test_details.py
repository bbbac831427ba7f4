"""Groups of tasks, profiles and pairs of solvers, as they stand below a table."""

from __future__ import annotations

import pytest
from test_ranking import board_of

from shardgym import load_suite
from shardgym.evaluation import evaluate
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.details import Details, task_groups
from shardgym.leaderboard.ranking import BASE


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """All of quick-v1 with two heuristics."""
    folder = tmp_path_factory.mktemp("quick")
    evaluate(load_suite("quick-v1"), ["random", BASE], out=folder, judge="roofline", oracle="roofline")
    return rank(load_boards([folder])[0])


def test_every_task_is_in_one_group_by_width_and_in_one_by_memory(quick):
    suite = load_suite("quick-v1")
    groups = task_groups(quick.board)
    for kind in ("width", "memory"):
        assert sum(tasks.astype(int) for name, tasks in groups.items() if name.startswith(kind)).tolist() == [1] * 10
    for index, task in enumerate(suite):
        assert groups[f"width {max(table.embedding_dim for table in task.tables)}"][index]
    tight = [task.total_bytes / task.topology.total_memory_bytes >= 0.75 for task in suite]
    assert groups["memory 75-100 %"].tolist() == tight


def test_tasks_whose_tables_exceed_the_memory_of_devices_are_a_group(tmp_path):
    evaluate(load_suite("tiers-v1"), [BASE], out=tmp_path, judge="roofline", oracle="roofline", limit=2)
    groups = task_groups(load_boards([tmp_path])[0])
    assert [name for name in groups if name.startswith("memory")] == ["memory above 100 %"]


def test_a_groups_ratio_is_over_its_tasks(quick):
    details = Details.of(quick)
    random, base = (details.solvers.index(solver) for solver in ("random", BASE))
    for group, ratios in details.ratios.items():
        assert ratios[base].ratio == pytest.approx(1.0)
        assert (ratios[random].interval is None) == (details.groups[group] < 6)
    widths = [(details.groups[g], own[random].ratio) for g, own in details.ratios.items() if g.startswith("width")]
    product = 1.0
    for count, ratio in widths:
        product *= ratio**count
    (row,) = (row for row in quick.rows if row.solver == "random")
    assert product ** (1 / 10) == pytest.approx(row.relative)


def test_tasks_that_are_not_at_hand_are_in_no_group(tmp_path):
    ranking = rank(board_of(tmp_path, {"one": [1.0], BASE: [2.0]}))
    assert Details.of(ranking).groups == {}
    text = render([ranking], details=True)
    assert "by group of tasks" not in text
    assert "Probability in % that the solver's plan is cheaper" in text


def test_pairs_of_solvers_have_intervals(quick):
    """That of the second over the first is the mirror image."""
    details = Details.of(quick)
    base, random = (details.solvers.index(solver) for solver in (BASE, "random"))
    ahead, behind = details.improvement_interval(base, random), details.improvement_interval(random, base)
    assert ahead.low <= details.improvement[base, random] <= ahead.high
    assert (behind.low, behind.high) == pytest.approx((1 - ahead.high, 1 - ahead.low))
    text = render([quick], details=True)
    assert "Probability in % (95 % interval) that the solver's plan is cheaper" in text
    chance = f"{100 * details.improvement[base, random]:.0f}"
    assert f"{chance} ({100 * ahead.low:.0f}-{100 * ahead.high:.0f})" in text


def test_details_follow_the_table_with_all_notes(quick):
    plain, full = render([quick]), render([quick], details=True)
    assert full.startswith(plain)
    assert "width 64 (3)" in full
    assert "Settings of the judge: none." in full
    assert "Settings of the judge" not in plain
