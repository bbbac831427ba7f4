"""Files of recorded ids, as dlrm_datasets has them: read without running their code, checked, and found by name.

A file (`.pt` or `.pt.gz`) holds one batch of T tables and B samples as a tuple (indices, offsets, lengths): the ids of
all tables one after another, T * B + 1 positions into them, and the bag sizes, shape (T, B).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.files import check_regular
from shardgym.table import RecordedIds

if TYPE_CHECKING:
    import torch

#: Environment variable with the folders that are searched for recorded ids, separated like PATH.
DATA_VARIABLE = "SHARDGYM_DATA"


class Recording(NamedTuple):
    """The checked content of one file.

    Attributes:
        path: of the file.
        indices: ids of all tables, table after table.
        starts: where the ids of each table start, and the end; T + 1 numbers.
        lengths: bag sizes, shape (T, B).
    """

    path: str
    indices: torch.Tensor
    starts: list[int]
    lengths: torch.Tensor

    def bags(self, table_index: int) -> tuple[Ints, Ints]:
        """Return (indices, lengths) of one table as 64-bit integers; raises `InputError` when there is none."""
        if not 0 <= table_index < len(self.lengths):
            raise InputError(f"{self.path}: has tables 0 to {len(self.lengths) - 1}, asked for table {table_index}")
        indices = self.indices[self.starts[table_index] : self.starts[table_index + 1]]
        return indices.numpy().astype(np.int64), self.lengths[table_index].numpy().astype(np.int64)


def recorded_bags(ids: RecordedIds, batch_size: int) -> tuple[Ints, Ints]:
    """Return (indices, lengths) of the first `batch_size` recorded samples.

    Raises:
        InputError: the file is not found, its checksum differs, or it holds fewer samples.
    """
    if batch_size > ids.batch_size:
        raise InputError(f"batch size {batch_size} exceeds the {ids.batch_size} samples recorded in '{ids.file}'")
    indices, lengths = _verified_bags(ids)
    lengths = lengths[:batch_size]
    return indices[: int(lengths.sum())], lengths


@functools.lru_cache(maxsize=64)
def _verified_bags(ids: RecordedIds) -> tuple[Ints, Ints]:
    """Find the file in the folders of `SHARDGYM_DATA` and compare the table's ids with their checksum."""
    folders = [Path(part) for part in os.environ.get(DATA_VARIABLE, "").split(os.pathsep) if part]
    path = next((folder / ids.file for folder in folders if (folder / ids.file).is_file()), None)
    if path is None:
        searched = ", ".join(map(str, folders)) or "not set"
        raise InputError(f"recorded ids need '{ids.file}': put its folder into {DATA_VARIABLE} (now: {searched})")
    indices, lengths = read_recording(path).bags(ids.table_index)
    if bags_digest(indices, lengths) != ids.sha256:
        raise InputError(f"table {ids.table_index} of '{ids.file}' differs from the ids this task was made from")
    if len(lengths) != ids.batch_size:
        raise InputError(
            f"table {ids.table_index} of '{ids.file}' has {len(lengths)} samples, expected {ids.batch_size}"
        )
    return indices, lengths


def bags_digest(indices: Ints, lengths: Ints) -> str:
    """SHA-256 over one table's lengths and ids as little-endian 64-bit integers."""
    digest = hashlib.sha256(lengths.astype("<i8").tobytes())
    digest.update(indices.astype("<i8").tobytes())
    return digest.hexdigest()


def read_recording(path: str | Path) -> Recording:
    """Read and check a file; the last one stays in memory.

    Raises:
        InputError: not such a file, truncated, or its three parts contradict each other.
    """
    try:
        state = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return _read_recording(str(Path(path).resolve()), (state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=1)
def _read_recording(path: str, _version: tuple[int, int]) -> Recording:
    """Read and check a file; a changed file has another time or size and is read again."""
    indices, offsets, lengths = _three_tensors(path, load_tensors(path))
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
    return Recording(path, indices, starts, lengths)


def _three_tensors(path: str, content: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    expected = "expected (indices, offsets, lengths) as in dlrm_datasets"
    if not isinstance(content, tuple | list):
        raise InputError(f"{path}: holds {type(content).__name__}, {expected}")
    if len(content) != 3:
        raise InputError(f"{path}: holds {type(content).__name__} of {len(content)}, {expected}")
    for name, tensor, dimensions in zip(("indices", "offsets", "lengths"), content, (1, 1, 2), strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{path}: {name} is {type(tensor).__name__}, {expected}")
        if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != dimensions:
            raise InputError(
                f"{path}: {name} is {tensor.dim()}-dimensional {str(tensor.dtype).removeprefix('torch.')}, "
                f"expected {dimensions}-dimensional int32 or int64"
            )
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise InputError(f"{path}: {name} is not a plain contiguous tensor, {expected}")
    indices, offsets, lengths = content
    return indices, offsets, lengths


#: Recorded ids unpack to less than ten times their size.
_MOST_UNPACKED = 50


def load_tensors(path: str | Path) -> Any:
    """Return the content of a `.pt` or `.pt.gz` file, tensors in main memory, without running code that it contains.

    Only tensors and plain containers are accepted (`torch.load` with `weights_only=True`). A compressed file is
    unpacked into the folder for temporary files first, and mapped rather than read into memory.

    Raises:
        InputError: the file is missing, truncated, no torch file, or holds anything but tensors.
    """
    check_regular(path)
    if not str(path).endswith(".gz"):
        return _torch_load(Path(path), str(path))
    # Where a mapped file cannot be deleted (Windows), it stays in the folder for temporary files.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        unpacked = Path(folder) / "unpacked.pt"
        try:
            with gzip.open(path) as source, unpacked.open("wb") as target:
                left = _MOST_UNPACKED * Path(path).stat().st_size + 2**26
                while block := source.read(2**20):
                    left -= len(block)
                    if left < 0:
                        raise InputError(
                            f"{path}: unpacks to more than {_MOST_UNPACKED} times its size: it holds no ids"
                        )
                    target.write(block)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be unpacked ({error}); is it a whole gzip file?") from None
        return _torch_load(unpacked, str(path))


def _torch_load(path: Path, source: str) -> Any:
    """Load a file; errors name `source`, which it may have been unpacked from."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that no torch wrote, which are refused or read all the same
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}") from None
    except Exception as error:  # damaged and hostile files make the reader raise all kinds of errors
        why = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        raise InputError(f"{source}: not a torch file of plain tensors ({why})") from None
