"""Random tasks, small enough for the plain search."""

import numpy as np

from shardgym import EmbeddingTable, ShardingTask, Topology

BATCH = 512


def random_task(
    seed: int, tables: int, devices: int, spare: float = 4.0, *, uneven: bool = False, optimizer: str = "exact_sgd"
) -> ShardingTask:
    """Random tables on devices that have `spare` times the memory they need together."""
    rng = np.random.default_rng(seed)
    drawn = tuple(random_table(n, rng) for n in range(tables))
    task = ShardingTask(drawn, Topology(num_devices=devices, memory_bytes=2**50), batch_size=BATCH, optimizer=optimizer)
    shares = rng.dirichlet(np.full(devices, 20.0)) if uneven else np.full(devices, 1 / devices)
    memory = tuple(int(share * spare * task.total_bytes) + 1 for share in shares)
    return ShardingTask(drawn, Topology(num_devices=devices, memory_bytes=memory), BATCH, optimizer=optimizer)


def random_table(number: int, rng: np.random.Generator) -> EmbeddingTable:
    bins = np.zeros(17)
    bins[:6] = rng.dirichlet(np.linspace(3, 0.5, 6))
    return EmbeddingTable(
        f"t{number}", int(10 ** rng.uniform(2, 5)), int(rng.choice([4, 8, 12, 16, 32, 64])),
        pooling_factor=float(np.round(10 ** rng.uniform(-0.3, 1.5), 3)),
        reuse_histogram=tuple((bins / bins.sum()).tolist()),
    )  # fmt: skip
