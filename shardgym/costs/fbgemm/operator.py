"""FBGEMM's fused embedding operator for the shards of one device, on the CPU and on a GPU, and the ids it is fed."""

import functools
import hashlib
import math
from typing import Any, NamedTuple

import torch
from cachetools import LRUCache, cachedmethod

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.tables.ids import ZipfLaw, draw_bags, rows_of_block, scatter_ranks, what_is_drawn
from shardgym.tables.table import EmbeddingTable, UniformIds, ZipfIds

#: Optimisers of tasks by FBGEMM's names.
OPTIMIZERS = {
    "exact_sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "adam": "ADAM",
}
#: Value of all weights. It does not matter, but every page must have been written to: otherwise it is the kernel's
#: shared zero page, which stays in the cache, so that reads would be too fast.
WEIGHT = 0.01
#: Of every optimiser. Its values do not matter for times either.
LEARNING_RATE = 0.01
EPSILON = 0.01
#: Exponents of Zipf laws nearer to 1 than this have a logarithm for an integral.
_NO_POWER = 1e-12


def build_operator(shard_set: ShardSet, device: torch.device | None = None, *, bounds_check: bool = False) -> Any:
    """Build `SplitTableBatchedEmbeddingBagsCodegen` with one table per shard, which adds bags up or puts out all rows.

    Unpooled shards are apart, and of one width. Weights live and kernels run on torch's default device where none is
    given. With `bounds_check` every forward pass looks at all ids first, as it does by FBGEMM's default.
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    device = device or torch.get_default_device()
    on_cpu = device.type == "cpu"
    where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    precision = SparseType.FP16 if shard_set.precision == "fp16" else SparseType.FP32
    built = SplitTableBatchedEmbeddingBagsCodegen(
        [(shard.num_rows, shard.width, *where) for shard in shard_set.shards],
        weights_precision=precision,
        output_dtype=precision,
        optimizer=getattr(EmbOptimType, OPTIMIZERS[shard_set.optimizer]),
        learning_rate=LEARNING_RATE,
        eps=EPSILON,
        pooling_mode=PoolingMode.SUM if shard_set.shards[0].table.is_pooled else PoolingMode.NONE,
        bounds_check_mode=BoundsCheckMode.WARNING if bounds_check else BoundsCheckMode.NONE,
        device=device,
    )
    for weights in built.split_embedding_weights():
        weights.fill_(WEIGHT)
    return built


def dtype_of(shard_set: ShardSet) -> torch.dtype:
    """Return the type of weights and pooled values."""
    return torch.float16 if shard_set.precision == "fp16" else torch.float32


class TableIds(NamedTuple):
    """Ids of one table, or of a range of its rows, for one batch, on the device."""

    indices: torch.Tensor  #: row ids counted from the first row, sample by sample, int64, shape (number of ids,)
    lengths: torch.Tensor  #: ids per sample, int64, shape (batch_size,)


class Ids(NamedTuple):
    """Ids of all shards for one batch in FBGEMM's layout, on the device."""

    #: Row ids inside each shard, shard by shard and sample by sample, int64, shape (number of ids,).
    indices: torch.Tensor
    offsets: torch.Tensor  #: where each bag starts, and the end, int64, shape (shards * batch_size + 1,)


class RequestMaker:
    """Draws and merges ids on a device, and keeps up to `limit_bytes` of them; all plans of a task get the same ids."""

    def __init__(self, seed: int, device: torch.device, limit_bytes: int) -> None:
        self._seed = seed
        self._device = device
        #: By table and batch.
        self.drawn: LRUCache[Any, TableIds] = LRUCache(limit_bytes, tensor_bytes)

    def request(self, shard_set: ShardSet, batch: int) -> Ids:
        """Return the ids of batch number `batch` for all shards of `shard_set`."""
        parts = [cut_rows(self._table_ids(s.table, shard_set.batch_size, batch), s) for s in shard_set.shards]
        lengths = torch.cat([part.lengths for part in parts])
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return Ids(torch.cat([part.indices for part in parts]), offsets)

    @cachedmethod(lambda self: self.drawn, key=lambda _, table, *rest: (*what_is_drawn(table), *rest))
    def _table_ids(self, table: EmbeddingTable, batch_size: int, batch: int) -> TableIds:
        return draw_ids(self._device, table, batch_size, seed=self._seed, batch=batch)


def draw_ids(device: torch.device, table: EmbeddingTable, batch_size: int, *, seed: int, batch: int) -> TableIds:
    """Return the ids of `table` for batch number `batch`: those of `draw_bags`, or a GPU's own, of the same law."""
    if device.type != "cpu" and is_drawn_on_gpu(table):
        return TableIds(*draw_on(device, table, batch_size, seed=seed, batch=batch))
    bags = draw_bags(table, batch_size, seed=seed, batch=batch)
    return TableIds(*(torch.tensor(values, device=device) for values in bags))


def tensor_bytes(tensors: TableIds) -> int:
    """Return the bytes of both tensors."""
    return sum(int(tensor.nbytes) for tensor in tensors)


def cut_rows(ids: TableIds, shard: ShardSpec) -> TableIds:
    """Return the ids that fall into the rows of `shard`, counted from its first row; bags may become empty."""
    if shard.is_whole:
        return ids
    low, high = shard.rows
    samples = len(ids.lengths)
    inside = (ids.indices >= low) & (ids.indices < high)
    numbers = torch.arange(samples, device=ids.lengths.device)
    sample_of = torch.repeat_interleave(numbers, ids.lengths, output_size=len(ids.indices))
    return TableIds(ids.indices[inside] - low, torch.bincount(sample_of[inside], minlength=samples))


def is_drawn_on_gpu(table: EmbeddingTable) -> bool:
    """Return whether a table's ids have a law that a GPU draws by; recorded ids and ranges of rows are the host's."""
    return isinstance(table.ids, UniformIds | ZipfIds)


def draw_on(
    device: torch.device, table: EmbeddingTable, batch_size: int, *, seed: int, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the ids of a table that `is_drawn_on_gpu` for one batch, from what `draw_bags` depends on and the device.

    Returns row ids, int64, shape (number of ids,), and ids per sample, int64, shape (batch_size,), on the device.
    """
    assert isinstance(table.ids, UniformIds | ZipfIds)
    name = f"{seed}/{batch}/{table.name}".encode()
    generator = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:7]))
    number = functools.partial(torch.rand, dtype=torch.float64, device=device, generator=generator)
    if table.ids.lengths == "poisson":
        rates = torch.full((batch_size,), table.pooling_factor, dtype=torch.float64, device=device)
        lengths = torch.poisson(rates, generator).to(torch.int64)
    else:
        ends = torch.arange(batch_size + 1, dtype=torch.float64, device=device) * table.pooling_factor + 0.5
        lengths = ends.floor().to(torch.int64).diff()
    count = int(lengths.sum())
    if table.run_length == 1:
        return _rows(table.ids, table.num_embeddings, number(count)), lengths
    runs = (torch.arange(count, dtype=torch.float64, device=device) / table.run_length).to(torch.int64)
    distinct = int(runs[-1]) + 1 if count else 0
    return _rows(table.ids, table.num_embeddings, number(distinct))[runs], lengths


def _rows(ids: UniformIds | ZipfIds, rows: int, uniforms: torch.Tensor) -> torch.Tensor:
    """Map uniforms in [0, 1) to rows."""
    if isinstance(ids, UniformIds):
        return (uniforms * rows).to(torch.int64).clamp_(max=rows - 1)
    ranks: Any = _ranks(ZipfLaw(ids.s, ids.q, rows), uniforms)
    block = rows_of_block(ids, rows)
    if block == 1:
        return torch.as_tensor(scatter_ranks(ranks, rows))
    # As `place_ranks` does it.
    blocks = rows // block
    of_block: Any = ranks // block
    places = scatter_ranks(of_block.clamp(max=blocks - 1), blocks)
    return torch.where(of_block < blocks, torch.as_tensor(places * block + ranks % block), ranks)


def _ranks(law: ZipfLaw, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative law, as `ZipfLaw.ranks` does."""
    in_head = torch.searchsorted(torch.as_tensor(law.cumulative_head, device=uniforms.device), uniforms, right=True)
    if law.head == law.rows:
        return in_head
    part = (uniforms - law.head_share).clamp_(min=0) / (1 - law.head_share)
    if abs(law.power) < _NO_POWER:
        logs = part * law.log_range
    else:
        logs = torch.log1p(part * math.expm1(law.power * law.log_range)) / law.power
    behind = law.head + (law.low * torch.expm1(logs)).to(torch.int64)
    return torch.where(in_head < law.head, in_head, behind.clamp_(max=law.rows - 1))
