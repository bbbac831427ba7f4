"""Tables with recorded ids from a dlrm_datasets file (`.pt` or `.pt.gz`).

Such a file holds one batch of T tables as a tuple (indices, offsets, lengths): ids of all tables one after another,
T * B + 1 positions into them, and the bag sizes, shape (T, B). It holds no widths and no table sizes; rows are what the
ids reach, as in the papers' preparation scripts.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from shardgym.errors import InputError
from shardgym.ids.distribution import RecordedIds
from shardgym.ids.recorded import bags_digest
from shardgym.ids.reuse import ReuseCounts
from shardgym.pools.pool import TablePool
from shardgym.pools.safe_torch import load_tensors
from shardgym.table import EmbeddingTable

if TYPE_CHECKING:
    import torch

Int64s = npt.NDArray[np.int64]

#: Tables whose ids reach fewer rows are taken to have this many.
MIN_ROWS = 100


class Recording(NamedTuple):
    """The checked content of one file.

    Attributes:
        indices: ids of all tables, table after table.
        starts: where the ids of each table start, and the end; shape (T + 1,).
        lengths: bag sizes, shape (T, B).
    """

    indices: torch.Tensor
    starts: list[int]
    lengths: torch.Tensor

    def bags(self, table_index: int) -> tuple[Int64s, Int64s]:
        """Return (indices, lengths) of one table as 64-bit integers."""
        indices = self.indices[self.starts[table_index] : self.starts[table_index + 1]]
        return indices.numpy().astype(np.int64), self.lengths[table_index].numpy().astype(np.int64)


def load_dlrm_dataset(path: str | Path, embedding_dim: int = 16) -> TablePool:
    """Load a file as a pool.

    Rows are the largest id + 1 but at least 100, the pooling factor is the mean bag size. To measure with the recorded
    ids later, put the file's folder into the environment variable `SHARDGYM_DATA`.

    Args:
        path: a `.pt` or `.pt.gz` file.
        embedding_dim: width given to all tables, as the file says none.

    Raises:
        InputError: not such a file, truncated, or its three parts contradict each other.
    """
    recording = _recording(path)
    count, batch_size = recording.lengths.shape
    tables = []
    for index in tqdm(range(count), desc="reading tables", unit="table", delay=1, leave=False, disable=None):
        indices, lengths = recording.bags(index)
        if indices.size and int(indices.min()) < 0:
            raise InputError(f"{path}: table {index} has a negative id ({int(indices.min())})")
        ids = RecordedIds(Path(path).name, index, batch_size, bags_digest(indices, lengths))
        tables.append({
            "name": f"t{index:03d}",
            "num_embeddings": max(MIN_ROWS, int(indices.max(initial=-1)) + 1),
            "embedding_dim": embedding_dim,
            "pooling_factor": indices.size / batch_size,
            "ids": ids,
            "reuse_histogram": ReuseCounts.of(indices).row_shares(),
        })
    made = tuple(EmbeddingTable.from_dict(table, f"{path}, table {i}") for i, table in enumerate(tables))
    return TablePool.from_dict({"name": Path(path).name, "batch_size": batch_size, "tables": made}, str(path))


def read_bags(path: str | Path, table_index: int) -> tuple[Int64s, Int64s]:
    """Return (indices, lengths) of one table, int64; the last file read stays in memory.

    Raises:
        InputError: the file is unsuitable, or has no such table.
    """
    recording = _recording(path)
    if not 0 <= table_index < len(recording.lengths):
        raise InputError(f"{path}: has tables 0 to {len(recording.lengths) - 1}, asked for table {table_index}")
    return recording.bags(table_index)


def _recording(path: str | Path) -> Recording:
    try:
        state = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return _load(str(Path(path).resolve()), (state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=1)
def _load(path: str, _version: tuple[int, int]) -> Recording:
    """Read and check a file; a changed file has another time or size and is read again."""
    indices, offsets, lengths = _parts(path, load_tensors(path))
    if lengths.numel() == 0:
        raise InputError(f"{path}: lengths is empty, expected tables x samples")
    if offsets.numel() != lengths.numel() + 1:
        raise InputError(
            f"{path}: offsets has {offsets.numel()} entries, expected {lengths.numel() + 1} for "
            f"{lengths.shape[0]} tables x {lengths.shape[1]} samples"
        )
    if int(offsets[0]) != 0 or int(offsets[-1]) != indices.numel():
        raise InputError(
            f"{path}: offsets run from {int(offsets[0])} to {int(offsets[-1])}, expected 0 to {indices.numel()}, "
            "the number of ids"
        )
    if int(lengths.min()) < 0 or not bool((offsets.diff() == lengths.flatten()).all()):
        raise InputError(f"{path}: offsets and lengths contradict each other; the file may be damaged")
    starts = [int(start) for start in offsets[:: lengths.shape[1]]]
    return Recording(indices, starts, lengths)


def _parts(path: str, content: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    wanted = "expected (indices, offsets, lengths) as in dlrm_datasets"
    if not isinstance(content, tuple | list):
        raise InputError(f"{path}: holds {type(content).__name__}, {wanted}")
    if len(content) != 3:
        raise InputError(f"{path}: holds {type(content).__name__} of {len(content)}, {wanted}")
    for name, tensor, dimensions in zip(("indices", "offsets", "lengths"), content, (1, 1, 2), strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{path}: {name} is {type(tensor).__name__}, {wanted}")
        if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != dimensions:
            raise InputError(
                f"{path}: {name} is {tensor.dim()}-dimensional {str(tensor.dtype).removeprefix('torch.')}, "
                f"expected {dimensions}-dimensional int32 or int64"
            )
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise InputError(f"{path}: {name} is not a plain contiguous tensor, {wanted}")
    indices, offsets, lengths = content
    return indices, offsets, lengths
