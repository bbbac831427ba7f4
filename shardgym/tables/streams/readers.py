"""Readers of files of ids: dlrm_datasets, Parquet, and text as Criteo's click logs. Code in files is never run."""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardgym.errors import InputError, import_extra, one_line
from shardgym.tables.bags import Bags

if TYPE_CHECKING:
    import torch

#: Samples of Parquet and lines of text that are read together.
_PART = 2**16


class Reader(ABC):
    """A file of ids."""

    features: tuple[str, ...]  #: in the order of the file
    left_out: tuple[str, ...] = ()  #: columns that are not features, each with its type
    batch_size: int | None = None  #: samples of the one batch that the file says it holds

    def __init__(self, path: Path) -> None:
        self._path = path

    @abstractmethod
    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield raw ids, in parts of any number of samples, the same for all features."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever libraries raise for a missing, damaged or unexpected file into one `InputError`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or one_line(error):.200}") from None


class DlrmDatasets(Reader):
    """A file of dlrm_datasets (`.pt`, `.pt.gz`): one batch of tables t000, t001, ....

    It is a tuple (indices, offsets, lengths): the ids of all T tables one after another, T * B + 1 positions into them,
    and the bag sizes, shape (T, B).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        lengths = self._recording().lengths
        self.batch_size = lengths.shape[1]
        self.features = tuple(f"t{index:03d}" for index in range(lengths.shape[0]))

    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield the whole batch."""
        recording = self._recording()
        yield {feature: recording.bags(self.features.index(feature)) for feature in features}

    def _recording(self) -> _Recording:
        state = self._path.stat()
        return _read_recording(self._path.resolve(), (state.st_mtime_ns, state.st_size))


class _Recording(NamedTuple):
    indices: torch.Tensor
    offsets: torch.Tensor
    lengths: torch.Tensor

    def bags(self, table: int) -> Bags:
        samples = self.lengths.shape[1]
        start, end = (int(self.offsets[number * samples]) for number in (table, table + 1))
        return Bags(self.indices[start:end].numpy(), self.lengths[table].numpy())


@functools.lru_cache(maxsize=1)
def _read_recording(path: Path, _version: tuple[int, int]) -> _Recording:
    """Read and check a file; a changed one has another time or size and is read again."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a mapped file stays on Windows
        unpacked = path
        if path.suffix == ".gz":
            unpacked = Path(folder) / "unpacked.pt"
            with gzip.open(path) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
        content = _torch_load(path, unpacked)
    import torch

    if not (isinstance(content, tuple | list) and len(content) == 3 and all(map(torch.is_tensor, content))):
        raise InputError(f"{path}: expected three tensors (indices, offsets, lengths), as in dlrm_datasets")
    indices, offsets, lengths = content
    if [tensor.dim() for tensor in content] != [1, 1, 2] or any(tensor.is_floating_point() for tensor in content):
        raise InputError(f"{path}: expected integers: 1-D indices and offsets, and lengths of shape (tables, samples)")
    whole = offsets.numel() == lengths.numel() + 1 > 1 and int(offsets[0]) == 0 and int(offsets[-1]) == indices.numel()
    if not whole or int(lengths.min()) < 0 or not bool((offsets.diff() == lengths.flatten()).all()):
        raise InputError(f"{path}: indices, offsets and lengths contradict each other; the file may be damaged")
    return _Recording(indices, offsets, lengths)


def _torch_load(path: Path, unpacked: Path) -> Any:
    import torch

    try:
        return torch.load(unpacked, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(unpacked))
    except OSError:
        raise
    except Exception as error:
        raise InputError(f"{path}: not a torch file of plain tensors ({one_line(error):.160})") from None


class Parquet(Reader):
    """A Parquet file with a row per sample, and a column of ids or of lists of ids per feature."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        schema = self._open().schema_arrow
        self.features = tuple(field.name for field in schema if _holds_ids(field.type))
        self.left_out = tuple(f"{field.name} ({field.type})" for field in schema if not _holds_ids(field.type))
        if not self.features:
            raise InputError(f"{path}: no column holds integers or lists of integers, expected one per feature")

    def _open(self) -> Any:
        return import_extra("pyarrow.parquet", "reading Parquet files of ids").ParquetFile(self._path)

    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield groups of rows."""
        for part in self._open().iter_batches(_PART, columns=list(features)):
            yield {feature: self._bags(feature, part.column(feature)) for feature in features}

    def _bags(self, feature: str, column: Any) -> Bags:
        import pyarrow.compute

        is_list = _is_list(column.type)
        lengths = pyarrow.compute.list_value_length(column) if is_list else column.is_valid().cast("int64")
        values = pyarrow.compute.list_flatten(column) if is_list else column.drop_null()
        if values.null_count:
            raise InputError(f"{self._path}, column '{feature}': lists contain {values.null_count} nulls, expected ids")
        return Bags(
            values.to_numpy(zero_copy_only=False),
            pyarrow.compute.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64),
        )


def _holds_ids(kind: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_integer(kind.value_type if _is_list(kind) else kind))


def _is_list(kind: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))


class CriteoText(Reader):
    """Lines of a label, 13 numbers and 26 hexadecimal ids between tabs, also packed by gzip; an empty cell is id 0."""

    features = tuple(f"cat_{n}" for n in range(26))

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._open() as file:
            file.read(1)

    def _open(self) -> IO[bytes]:
        packed = self._path.suffix.lower() == ".gz"
        return gzip.open(self._path) if packed else self._path.open("rb")  # type: ignore[return-value]

    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield blocks of lines."""
        places = [14 + self.features.index(feature) for feature in features]
        number = 0
        with self._open() as file:
            while lines := list(itertools.islice(file, _PART)):
                ids = np.zeros((len(features), len(lines)), dtype=np.int64)
                for row, line in enumerate(lines):
                    number += 1
                    cells = line.rstrip(b"\r\n").split(b"\t")
                    if len(cells) != 40:
                        raise InputError(
                            f"{self._path}, line {number}: got {len(cells)} tab-separated cells, expected 40: a label, "
                            "13 numbers and 26 hexadecimal ids"
                        )
                    try:
                        ids[:, row] = [int(cells[place] or b"0", 16) for place in places]
                    except (ValueError, OverflowError):
                        raise InputError(f"{self._path}, line {number}: an id is not a hexadecimal number") from None
                ones = np.ones(len(lines), dtype=np.int64)
                yield {feature: Bags(of_one, ones) for feature, of_one in zip(features, ids, strict=True)}
