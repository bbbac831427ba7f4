"""Files of recorded ids, as dlrm_datasets has them: one batch of T tables as a tuple (indices, offsets, lengths).

Ids of all tables one after another, T * B + 1 positions into them, and the bag sizes, shape (T, B).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.ids.safe_torch import load_tensors

if TYPE_CHECKING:
    import torch


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

    def bags(self, table_index: int) -> tuple[Ints, Ints]:
        """Return (indices, lengths) of one table as 64-bit integers."""
        indices = self.indices[self.starts[table_index] : self.starts[table_index + 1]]
        return indices.numpy().astype(np.int64), self.lengths[table_index].numpy().astype(np.int64)


def read_bags(path: str | Path, table_index: int) -> tuple[Ints, Ints]:
    """Return (indices, lengths) of one table, int64; the last file read stays in memory.

    Raises:
        InputError: the file is unsuitable, or has no such table.
    """
    recording = read_recording(path)
    if not 0 <= table_index < len(recording.lengths):
        raise InputError(f"{path}: has tables 0 to {len(recording.lengths) - 1}, asked for table {table_index}")
    return recording.bags(table_index)


def read_recording(path: str | Path) -> Recording:
    """Read and check a file (`.pt` or `.pt.gz`); the last one stays in memory.

    Raises:
        InputError: not such a file, truncated, or its three parts contradict each other.
    """
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
