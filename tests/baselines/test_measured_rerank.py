"""Measured rerank: what is measured, by what, what comes back, and which plans count as different."""

from dataclasses import replace

import numpy as np
import pytest
from baseline_tasks import VARIED, CountingRoofline, task_of

from baselines import measured_rerank
from baselines.measured_rerank import MeasuredRerank, held_work, placement_distance
from shardgym import CostModel, PlanCost, Shard, ShardingPlan, make_cost, make_solver
from shardgym.errors import InputError, MeasurementError, NoFeasiblePlanError, UnknownNameError

TASK = task_of(VARIED, (2**30,) * 3)
TASK = replace(TASK, topology=replace(TASK.topology, intra_bandwidth=4e9))  # compute decides
ORACLE = make_cost("roofline")
HERE = "test_measured_rerank"


def columns_on_first(plan):
    return sum(shard.num_columns for shard in plan.on(0))


class Measurer(CostModel):
    """Counts columns on device 0: the best plan has none there. What it is asked is kept."""

    name, version, deterministic, hardware = "toy", "1", True, "none"
    made = []  # noqa: RUF012

    def __init__(self, seed=0, broken=False):
        self.seed, self.broken, self.asked = seed, broken, []
        Measurer.made.append(self)

    def score(self, task, plans):
        self.asked.append(list(plans))
        if self.broken:
            return [self.no_cost(task, "it broke")] * len(plans)
        times = [1.0 + columns_on_first(plan) for plan in plans]
        return [PlanCost(np.full((task.num_devices, 5), ms / 5), self.name, "1", self.hardware) for ms in times]


class Improving:
    """Reports ever better plans, other ones with every seed."""

    def solve(self, task, cost, seed=0, *, observer=None):
        draws = np.random.default_rng(seed).integers(0, task.num_devices, (6, task.num_tables)).tolist()
        plans = [ShardingPlan.table_wise(task, row) for row in draws]
        priced = sorted(zip((c.total_ms for c in cost.evaluate(task, plans)), range(6), strict=True), reverse=True)
        for ms, number in priced:
            if observer is not None:
                observer(plans[number], ms)
        return plans[priced[-1][1]]


def rerank(**settings):
    Measurer.made.clear()
    return MeasuredRerank(**{"solver": f"{HERE}:Improving", "measurer": f"{HERE}:Measurer"} | settings)


def test_the_plan_that_the_measurer_likes_best_comes_back():
    seen = []
    plan = rerank(queries=5).solve(TASK, ORACLE, observer=lambda *pair: seen.append(pair))
    (measured,) = Measurer.made[0].asked
    held = [columns_on_first(p) for p in measured]
    assert plan == measured[held.index(min(held))]
    assert seen == [(plan, 1.0 + min(held))]
    assert min(held) < held[0]  # the oracle's favourite comes first, and is not it


def test_what_is_measured_is_the_best_by_the_oracle_that_differs(monkeypatch):
    monkeypatch.setattr(measured_rerank, "_DISTANCE", 0.2)
    rerank(queries=5, starts=3).solve(TASK, ORACLE, seed=2)
    (measured,) = Measurer.made[0].asked
    assert len(measured) == 5
    costs = [cost.total_ms for cost in ORACLE.evaluate(TASK, measured)]
    assert costs == sorted(costs)
    favourites = [Improving().solve(TASK, ORACLE, seed) for seed in (6, 7, 8)]  # of the three starts
    assert measured[0] == min(favourites, key=lambda plan: ORACLE.evaluate(TASK, [plan])[0].total_ms)
    held = [held_work(TASK, plan) for plan in measured]
    assert min(placement_distance(held[i], held[j]) for i in range(5) for j in range(i)) >= 0.2


def test_a_plan_alone_is_not_measured_and_a_start_with_nothing_new_is_the_last():
    plan = rerank(solver="lpt").solve(TASK, ORACLE)
    assert plan == make_solver("lpt").solve(TASK, ORACLE)
    assert Measurer.made[0].asked == []
    cost = CountingRoofline()
    rerank(solver="dim_greedy").solve(TASK, cost)
    assert cost.plans == 1  # priced once, though it was found twice


def test_an_initial_plan_is_a_candidate():
    away = ShardingPlan.table_wise(TASK, [1, 2] * 4)
    assert rerank(solver="lpt").solve(TASK, ORACLE, initial_plan=away) == away
    other = task_of(VARIED[:3])
    with pytest.raises(InputError, match="plan is for task"):
        rerank().solve(other, ORACLE, initial_plan=away)


def test_a_measurer_with_a_seed_gets_one_that_judges_do_not_have():
    rerank(measurer_settings={"seed": 5})
    assert Measurer.made[0].seed == 5
    rerank()
    assert Measurer.made[0].seed > 2**16


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"measurer": "rofline"}, UnknownNameError, "did you mean roofline"),
        ({"measurer": None, "measurer_settings": {"seed": 1}}, InputError, "measurer_settings need a measurer: name"),
        ({"measurer": "simulator", "measurer_settings": {"role": "judge"}}, InputError, "which is for scoring"),
    ],
)
def test_wrong_settings_are_one_line(settings, error, message):
    with pytest.raises(error, match=message):
        rerank(**settings)


def test_failures_say_whose_they_are():
    with pytest.raises(MeasurementError, match="measurer 'toy' could price none of 8 plans: it broke"):
        rerank(measurer_settings={"broken": True}).solve(TASK, ORACLE)
    crowded = task_of([(10, 4, 1.0)] * 3, (240, 240))
    with pytest.raises(NoFeasiblePlanError):
        rerank(solver="lpt").solve(crowded, ORACLE)


class Slow(Measurer):
    """Measures, and so may draw other times."""

    deterministic = False


def test_a_time_limit_leaves_plans_unmeasured():
    solver = rerank(measurer=f"{HERE}:Slow")
    plan = solver.solve(TASK, ORACLE, time_limit_s=1e-6)
    assert Measurer.made[0].asked == []
    assert plan in [Improving().solve(TASK, ORACLE, seed) for seed in range(4)]
    solver._seconds_per_plan = 20.0
    solver.solve(TASK, ORACLE, time_limit_s=50.0)
    assert [len(plans) for plans in Measurer.made[0].asked] == [2]
    assert solver._seconds_per_plan < 1


#: Work 4 x 10, 8 x 5, 12 x 10 and 40 x 1: 40, 40, 120 and 40 of 240.
WORK = task_of([(10, 4, 9.0), (20, 8, 4.0), (30, 12, 9.0), (5, 40, 0.0)], (2**20,) * 3)


def placed(*devices):
    return ShardingPlan.table_wise(WORK, devices)


def distance(one, other):
    return placement_distance(held_work(WORK, one), held_work(WORK, other))


def test_distance_is_the_work_that_moves():
    assert distance(placed(0, 1, 1, 2), placed(0, 1, 1, 2)) == pytest.approx(0)
    assert distance(placed(0, 1, 1, 2), placed(1, 1, 1, 2)) == pytest.approx(40 / 240)
    assert distance(placed(0, 0, 0, 0), placed(0, 1, 2, 2)) == pytest.approx(80 / 240)
    # The device with most work in common keeps its name, though it is another one.
    assert distance(placed(2, 2, 0, 0), placed(0, 1, 2, 2)) == pytest.approx(40 / 240)


def test_parts_of_a_table_count_by_their_cells():
    whole = placed(0, 1, 2, 2)
    shards = [s for s in whole.shards if s.table != "t2"]
    columns = [Shard("t2", (0, 30), (0, 4), 2), Shard("t2", (0, 30), (4, 12), 1)]
    rows = [Shard("t2", (0, 10), (0, 12), 2), Shard("t2", (10, 30), (0, 12), 1)]
    for parts in (columns, rows):
        cut = ShardingPlan.of(WORK, [*shards, *parts])
        # The larger part is renamed to where the whole was: the part that is not there is a third.
        assert distance(whole, cut) == pytest.approx((40 + 40) / 240)
        other_columns = [replace(part, devices=(3 - part.devices[0],)) for part in parts]
        assert distance(cut, ShardingPlan.of(WORK, [*shards, *other_columns])) == pytest.approx(40 / 240)
