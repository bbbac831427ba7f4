"""Ids of one batch of one table, drawn on a GPU: the laws of `shardgym.tables.ids`, with torch's generators.

A host takes minutes for the batches of large tasks. The same seed gives other ids than on the host, of the same law.
"""

import functools
import hashlib
import math
from typing import Any

import torch

from shardgym.tables.ids import ZipfLaw, rows_of_block, scatter_ranks
from shardgym.tables.table import EmbeddingTable, UniformIds, ZipfIds

#: Exponents nearer to 1 than this have a logarithm for an integral.
_NO_POWER = 1e-12


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
