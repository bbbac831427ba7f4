"""What cost models take for tasks and plans, and what they refuse."""

import pytest

from shardgym import CostModel, EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, make_cost

TOPOLOGY = Topology(num_devices=2, memory_bytes=2**20)
TASK = ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 20, 4)), TOPOLOGY, batch_size=64)
OTHER = ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 30, 4)), TOPOLOGY, batch_size=64)
PLAN, FOREIGN = ShardingPlan.table_wise(TASK, [0, 1]), ShardingPlan.table_wise(OTHER, [0, 1])


def test_tasks_are_tasks_and_plans_are_those_of_the_task():
    cost = make_cost("roofline")
    with pytest.raises(InputError, match=r"plan is for task .*, not for task .*: use the task"):
        cost.evaluate(TASK, [FOREIGN])
    with pytest.raises(InputError, match="task: expected a ShardingTask, got "):
        cost.evaluate("task.json", [PLAN])


class Complete(CostModel):
    """A cost model whose `score` returns nothing."""

    name, version, deterministic, hardware = "complete", "1", True, "none"

    def score(self, task, plans):
        return []


class NoVersion(Complete):
    """Lacks one."""


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
    with pytest.raises(InputError, match=r"score\(\) of cost 'complete' returned 0 costs for 1 plans"):
        Complete().evaluate(TASK, [PLAN])
