"""Tasks of any size from the synthetic pool, drawn for several scripts. Not a script."""

import dataclasses
import functools

import numpy as np

from shardgym import EmbeddingTable, ShardingTask, Topology, ZipfIds, load_pool
from shardgym.tables.pools.load import load_model
from shardgym.tables.table import TablePool

BATCH = 8192
_SCALE = 8


@functools.cache
def pool_halves() -> tuple[TablePool, TablePool]:
    """Return train and test half of the pool that the CPU-sized suites draw from."""
    return load_pool("synthetic-2021").scaled(_SCALE).split()


def benchmark_task(tables: int, devices: int, seed: int) -> ShardingTask:
    """Draw tables of the pool's test half with replacement, and widths of 4, 8, ..., 128; memory does not bind."""
    pool = pool_halves()[1].tables
    rng = np.random.default_rng([seed, tables, devices])
    drawn = tuple(
        dataclasses.replace(pool[n], name=f"t{number}", embedding_dim=int(2 ** rng.integers(2, 8)))
        for number, n in enumerate(rng.integers(0, len(pool), tables))
    )
    return ShardingTask(drawn, Topology(num_devices=devices, memory_bytes=2**50), batch_size=BATCH)


def dcnv2(devices: int) -> ShardingTask:
    """Return MLPerf's DLRM-DCNv2 on servers of eight H100; published-v1 has it on one of them."""
    model = load_model("dlrm-dcnv2")
    return ShardingTask(
        model.pool.tables, Topology.preset("dgx-h100", devices), model.pool.batch_size, model.precision,
        model.optimizer, name=f"dlrm-dcnv2 on {devices}",
    )  # fmt: skip


#: Models that `drawn_model` draws, and numbers of GPUs that they are planned for.
DRAWN_MODELS = {
    "40 tables": (8, 16, 64), "100 small tables": (8, 64), "one table of 238 GiB": (8,), "six tables of 287 GiB": (64,),
}  # fmt: skip


def drawn_model(name: str, devices: int) -> ShardingTask:
    """Return one of `DRAWN_MODELS` on servers of eight H100 with 70 GiB for tables, 65,536 samples a step."""
    rng = np.random.default_rng(7)
    if name == "40 tables":
        rows = np.exp(rng.uniform(np.log(1e5), np.log(1e8), 40)).astype(int)
        dims = rng.choice([32, 64, 128], 40)
        pooling = np.exp(rng.uniform(0, np.log(60), 40))
    elif name == "100 small tables":
        rows = np.exp(rng.uniform(np.log(500), np.log(2e5), 100)).astype(int)
        dims = rng.choice([16, 32, 64], 100)
        pooling = np.exp(rng.uniform(0, np.log(8), 100))
    elif name == "one table of 238 GiB":
        rows, dims, pooling = np.array([500_000_000]), np.array([128]), np.array([20.0])
    else:
        rows, dims, pooling = np.full(6, 600_000_000), np.full(6, 128), np.full(6, 10.0)
    sizes = zip(rows.tolist(), dims.tolist(), pooling.tolist(), strict=True)
    tables = tuple(EmbeddingTable(f"t{n}", *size, ids=ZipfIds(1.05)) for n, size in enumerate(sizes))
    topology = Topology.preset("dgx-h100", devices, 70 * 2**30)
    return ShardingTask(tables, topology, 65_536, optimizer="rowwise_adagrad", name=f"{name} on {devices}")
