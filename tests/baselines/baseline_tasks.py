"""Tasks of a few tables, settings of quick training, and a cost that counts what it is asked."""

from shardgym import CostModel, EmbeddingTable, ShardingTask, Topology
from shardgym.costs.roofline import RooflineCost


def task_of(tables, memory_bytes=(2**30, 2**30), **options):
    """Tables as (rows, columns, pooling factor), named t0, t1, ...; samples divide evenly over 2 to 6 devices."""
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes))
    tables = tuple(EmbeddingTable(f"t{i}", *values) for i, values in enumerate(tables))
    return ShardingTask(tables=tables, topology=topology, **({"batch_size": 1200} | options))


def small_tables(count):
    """Tables of 1600 bytes, each with more lookups than the one before it."""
    return [(100, 4, 1.0 + n) for n in range(count)]


#: Eight tables, the loads of which differ by a factor of 20.
VARIED = [(1000 * (1 + i * 5 % 7), 8 * 2 ** (i % 3), 2.0 + i * 7 % 11) for i in range(8)]


#: Settings of the learned solvers with which a step takes milliseconds.
_GROUPS = {"imitation_steps": 1, "imitation_updates": 2, "imitated": 4, "tasks": 2, "episodes": 4}
QUICK = {
    "dreamshard": {"policy_updates": 2, "collected_tasks": 8, "collected_plans": 2, "cost_updates": 20,
                   "cost_batch": 16, "update_tasks": 4, "update_episodes": 4},
    "autoshard": {"updates": 2, "tasks": 2, "episodes": 2, "random_plans": 2, "cost_warm_up": 20, "cost_batch": 16},
    "surco": {"zero_steps": 5, "starts": 2, "surrogate_updates": 2, "update_tasks": 4, "collected_tasks": 8,
              "cost_updates": 20, "cost_batch": 16},
    "ppo": {"num_envs": 2, "minibatches": 2, "epochs": 1},
    "ppo_columns": _GROUPS,
    "ppo_any": _GROUPS,
}  # fmt: skip


def devices_of(task, plan):
    """Device of every table, each of which must be whole."""
    plan.validate(task)
    assert len(plan.shards) == task.num_tables
    placed = {shard.table: shard.devices[0] for shard in plan.shards}
    return [placed[table.name] for table in task.tables]


class CountingRoofline(CostModel):
    """Roofline prices of whole plans only; counts the plans and the calls in which it is asked about them."""

    name = "counting"
    version = "1"
    deterministic = True
    hardware = "none"

    def __init__(self):
        self.plans = 0
        self.calls = 0
        self._roofline = RooflineCost()

    def score(self, task, plans):
        self.plans += len(plans)
        self.calls += 1
        return self._roofline.score(task, plans)
