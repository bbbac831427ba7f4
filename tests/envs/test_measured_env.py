"""The environment with real kernels as its reward."""

import gymnasium
import pytest

from shardgym.envs.env import TableWiseEnv
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


@pytest.mark.measured
def test_the_reward_may_be_measured():
    tables = tuple(EmbeddingTable(f"t{i}", 100, 8, 2.0) for i in range(3))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**20), batch_size=64)
    env = gymnasium.make("ShardGym/TableWise-v0", tasks=[task], cost="fbgemm", cost_settings={"device": "cpu"})
    assert isinstance(env.unwrapped, TableWiseEnv)
    try:
        env.reset(seed=0)
        for action in (0, 1, 0):
            _, reward, terminated, _, info = env.step(action)
    finally:
        env.close()
    assert terminated
    assert info["outcome"] == "complete", info["reason"]
    assert info["cost"].compute == "measured"
    assert reward == -info["cost"].total_ms < 0
