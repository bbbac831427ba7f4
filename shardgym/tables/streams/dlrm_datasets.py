"""Files of dlrm_datasets: read without running their code, and checked.

A file (`.pt` or `.pt.gz`) holds one batch of T tables and B samples as a tuple (indices, offsets, lengths): the ids of
all tables one after another, T * B + 1 positions into them, and the bag sizes, shape (T, B).
"""

from __future__ import annotations

import functools
import gzip
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardgym.errors import InputError
from shardgym.files import check_file
from shardgym.tables.bags import Bags
from shardgym.tables.streams.files import ReadOptions, RecordedStream

if TYPE_CHECKING:
    import torch


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

    def bags(self, table_index: int) -> Bags:
        """Return the ids of one table."""
        indices = self.indices[self.starts[table_index] : self.starts[table_index + 1]]
        return Bags(indices.numpy(), self.lengths[table_index].numpy())


class DlrmDatasetStream(RecordedStream):
    """A file of dlrm_datasets: one batch of tables t000, t001, ....

    Args:
        path: a `.pt` or `.pt.gz` file.
        options: see `RecordedStream`.
    """

    def __init__(self, path: str | Path, options: ReadOptions) -> None:
        count, samples = read_recording(path).lengths.shape
        self.batch_size = samples
        self._index = {f"t{index:03d}": index for index in range(count)}
        super().__init__(path, tuple(self._index), options)

    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield the whole batch."""
        recording = read_recording(self.path)
        yield {feature: recording.bags(self._index[feature]) for feature in features}


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
    check_file(path)
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
