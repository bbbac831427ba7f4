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


@pytest.mark.parametrize(
    ("name", "settings", "hardware"),
    [
        ("roofline", {"hardware": "h100"}, "roofline-h100"),
        ("torchrec_rating", {}, "torchrec-cuda"),
        ("torchrec_rating", {"compute_device": "cpu", "ddr_mem_bw": 5e7}, "torchrec-cpu-ddr_mem_bw=5e+07"),
        ("gpu", {}, "gpu-modelled"),
        ("gpu", {"exchange": "two_step"}, "gpu-modelled-two_step"),
        ("gpu", {"hardware": "h100", "ids": True, "wire": "fp16"}, "h100-modelled-ids-fp16_wire"),
        ("replay", {}, "replay"),
        ("replay", {"seed": 3, "batches": 2}, "replay-seed=3-batches=2"),
        ("replay", {"ids": "expected"}, "replay-expected"),
    ],
)
def test_settings_make_a_cost_again_and_are_part_of_its_hardware(name, settings, hardware):
    cost = make_cost(name, **settings)
    assert (cost.settings(), cost.hardware) == (settings, hardware)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("roofline", {"hardware": "h1000"}, "unknown device 'h1000': did you mean h100"),
        ("torchrec_rating", {"compute_device": "tpu"}, "compute_device: expected 'cuda' or 'cpu', got 'tpu'"),
        ("torchrec_rating", {"hbm_mem_bw": 0}, "hbm_mem_bw: expected a positive number, got 0"),
        ("torchrec_rating", {"inter_host_bw": "fast"}, "inter_host_bw: expected a positive number, got 'fast'"),
        ("gpu", {"hardware": "h10"}, "h100"),
        ("gpu", {"exchange": "ring"}, "exchange: expected 'flat' or 'two_step', got 'ring'"),
        ("gpu", {"ids": 1}, "ids"),
        ("gpu", {"wire": "int8"}, "wire: expected 'task' or 'fp16', got 'int8'"),
        ("replay", {"ids": "drawn"}, "ids: expected 'stream' or 'expected', got 'drawn'"),
        ("replay", {"ids": "expected", "seed": 1}, "ids='expected' draws nothing, got seed=1, batches=1: leave them"),
        ("replay", {"batches": 0}, "batches: expected an integer >= 1, got 0"),
        ("fbgemm", {"device": "tpu"}, "device='tpu': expected one of cpu, cuda"),
        ("fbgemm", {"rounds": 1}, "rounds: expected an integer >= 2, got 1"),
        ("fbgemm", {"comm": "guessed"}, "comm='guessed': expected one of auto, measured, modelled"),
        ("fbgemm", {"timeout_s": float("nan")}, "timeout_s=nan"),
        ("fbgemm", {"timeout_s": "60"}, "timeout_s='60': expected seconds between 0 and 1e6"),
    ],
)
def test_settings_that_make_no_cost_are_refused_with_what_was_expected(name, settings, message):
    with pytest.raises(InputError, match=message):
        make_cost(name, **settings)


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
        ("NoCostModel", "cost '.*:NoCostModel' is not a CostModel: subclass shardgym.CostModel"),
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
