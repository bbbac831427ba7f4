"""What cost models take for tasks and plans, and what they refuse."""

from __future__ import annotations

import pytest

from shardgym import CostModel, EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, load_suite, make_cost

TOPOLOGY = Topology(num_devices=2, memory_bytes=2**20)
TASK = ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 20, 4)), TOPOLOGY, batch_size=64)
OTHER = ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 30, 4)), TOPOLOGY, batch_size=64)
PLAN, FOREIGN = ShardingPlan.table_wise(TASK, [0, 1]), ShardingPlan.table_wise(OTHER, [0, 1])


@pytest.fixture(scope="module", params=["roofline", "simulator"])
def cost(request):
    return make_cost(request.param)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        (PLAN, r"plans: expected a list of ShardingPlan, got ShardingPlan; a single plan goes into a list, \[plan\]"),
        ([PLAN, 3], r"plans\[1\]: expected a ShardingPlan, got int 3"),
        ([FOREIGN], "plan is for task .*, not for task .*: use the task it was made for, or rebound"),
    ],
)
def test_plans_are_a_list_of_plans_of_the_task(cost, plans, message):
    with pytest.raises(InputError, match=message):
        cost.evaluate(TASK, plans)


@pytest.mark.parametrize("plans", [[PLAN], []])
@pytest.mark.parametrize(
    ("task", "got"), [("task.json", "str 'task.json'"), (None, "None"), (load_suite("tiny-v1"), "Suite"), (PLAN, "Sh")]
)
def test_the_task_is_a_task(cost, task, got, plans):
    with pytest.raises(InputError, match=rf"task: expected a ShardingTask, got {got}.*; ShardingTask.load\(path\)"):
        cost.evaluate(task, plans)


class Complete(CostModel):
    """A cost model whose `score` returns what it is given."""

    name, version, deterministic, hardware = "complete", "1", True, "none"
    returned: object = ()

    def score(self, task, plans):
        return self.returned


class NoVersion(Complete):
    """Lacks a version."""


class NoCostModel:
    """Has nothing of a cost model."""


class NoScore(CostModel):
    """Implements nothing."""


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        ("NoCostModel", "cost '.*:NoCostModel' is no CostModel: subclass shardgym.CostModel"),
        ("NoScore", "cost '.*:NoScore' lacks hardware, score: subclass shardgym.CostModel"),
        ("NoVersion", "cost '.*:NoVersion' lacks version: subclass shardgym.CostModel"),
    ],
)
def test_a_cost_of_ones_own_that_is_not_complete_is_refused(cls, message, monkeypatch):
    if cls == "NoVersion":
        monkeypatch.delattr(Complete, "version")
    with pytest.raises(InputError, match=message):
        make_cost(f"{__name__}:{cls}")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], r"score\(\) of cost 'complete' returned 0 costs for 1 plans"),
        ([1.0], r"what score\(\) of cost 'complete' returned\[0\]: expected a PlanCost, got float 1.0"),
        (None, r"what score\(\) of cost 'complete' returned: expected a list of PlanCost, got None"),
    ],
)
def test_score_returns_a_cost_for_every_plan(returned, message):
    cost = Complete()
    cost.returned = returned
    with pytest.raises(InputError, match=message):
        cost.evaluate(TASK, [PLAN])
