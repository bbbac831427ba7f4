"""Published kernels as they can be measured again, and in which words `rows.csv` would tell of them."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from predictions import optimizer_of, table_of
from rows import Row, read_rows

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.tables.table import Optimizer, Precision

#: By how much sizes are divided where they are to be small.
_SMALLER = 64


class Kernel(NamedTuple):
    """A forward and a backward pass."""

    shard_set: ShardSet
    #: The columns from `optimizer` to `id_distribution`.
    columns: tuple[str, ...]

    def op(self, phase: str) -> str:
        """Return the column `op` of "forward" or "backward"."""
        return phase if self.shard_set.shards[0].table.is_pooled else f"{phase} (nobag)"


def kernels(*, small: bool = False) -> Iterator[Kernel]:
    """Yield each kernel that was published with all its rows in the GPU's memory, once.

    First come those with the precision and the optimiser that they were published with, then all their sizes in FP32
    and FP16 with SGD and row-wise Adagrad.

    Args:
        small: whether batches and tables are a 64th of that, for a rehearsal on a CPU.
    """
    rows = [row for row in read_rows() if row.kind == "fused"]
    published = [_kernel(row, "fp16" if row.element_bytes == 2 else "fp32", optimizer_of(row), small) for row in rows]
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    optimizers: tuple[Optimizer, ...] = ("exact_sgd", "rowwise_adagrad")
    others = [_kernel(row, *kind, small) for kind in itertools.product(precisions, optimizers) for row in rows]
    yield from dict.fromkeys([*published, *others])


def _kernel(row: Row, precision: Precision, optimizer: Optimizer, small: bool) -> Kernel:
    divisor = _SMALLER if small else 1
    bags = int(row.bags) // divisor
    table = dataclasses.replace(
        table_of(row), num_embeddings=int(row.rows) // divisor, pooling="none" if "nobag" in row.op else "sum"
    )
    shards = tuple(
        ShardSpec(dataclasses.replace(table, name=f"published {n}"), (0, table.num_embeddings), table.embedding_dim)
        for n in range(int(row.tables))
    )
    sizes = (str(bags), str(table.num_embeddings), str(len(shards)), str(table.embedding_dim), f"{row.pooling:g}")
    # Distinct rows that a source counted are not those of other ids.
    law = "pow-law alpha 1.05" if "alpha 1.05" in row.ids else "uniform"
    return Kernel(ShardSet(shards, bags, precision, optimizer), (optimizer, precision, *sizes, law))
