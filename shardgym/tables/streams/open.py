"""Streams of files, by the names of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shardgym.arguments import check_int, check_name
from shardgym.errors import InputError
from shardgym.files import check_file
from shardgym.tables.streams.criteo import CriteoStream
from shardgym.tables.streams.dlrm_datasets import DlrmDatasetStream
from shardgym.tables.streams.files import ReadOptions, RecordedStream
from shardgym.tables.streams.parquet import ParquetStream
from shardgym.tables.table import MOST_ROWS

#: What files of ids end in, and what they are.
ENDINGS: dict[str, Callable[[str, ReadOptions], RecordedStream]] = {
    ".pt": DlrmDatasetStream,
    ".pt.gz": DlrmDatasetStream,
    ".parquet": ParquetStream,
    ".tsv": CriteoStream,
    ".txt": CriteoStream,
    ".tsv.gz": CriteoStream,
    ".txt.gz": CriteoStream,
}


def holds_ids(path: str) -> bool:
    """Say whether a file is one of ids, by what its name ends in."""
    return _reader(path) is not None


def holds_hashes(path: str | Path) -> bool:
    """Say whether ids of a file are hashes, by what its name ends in: they need a hash size."""
    return _reader(str(path)) is CriteoStream


def open_stream(
    path: str | Path,
    *,
    features: Sequence[str] | None = None,
    hash_size: int | Mapping[str, int] | None = None,
    samples: int | None = None,
) -> RecordedStream:
    """Open a file of ids.

    Args:
        path: a file of dlrm_datasets (`.pt`, `.pt.gz`); a Parquet file with a row per sample and, for each feature, a
            column of ids or of lists of ids (`.parquet`); or text as Criteo's, with a label, 13 numbers and 26 columns
            of hexadecimal ids between tabs (`.tsv`, `.txt`, also with `.gz`).
        features: which; all by default. Those of Criteo's text are cat_0 to cat_25, those of dlrm_datasets t000 and on.
        hash_size: what ids are taken modulo, to become rows: for all features, or by feature. By default ids are rows.
            Text needs one for each feature that is read, as its ids are hashes of 32 bits.
        samples: read at most so many, from the first one on.

    Raises:
        InputError: the file cannot be read, or ends in something else; or an argument is none of these.
        UnknownNameError: it has no such feature.
        MissingDependencyError: pyarrow is not installed, for Parquet.
    """
    text = check_name("path", path)
    reader = _reader(text)
    if reader is None:
        raise InputError(f"cannot read ids from '{text}': a file of ids ends in {', '.join(ENDINGS)}")
    check_file(text)
    sizes: int | dict[str, int] = {}
    if isinstance(hash_size, Mapping):
        sizes = {name: _hash_size(f"hash_size of '{name}'", size) for name, size in hash_size.items()}
    elif hash_size is not None:
        sizes = _hash_size("hash_size", hash_size)
    most = None if samples is None else check_int("samples", samples, 1)
    chosen = None if features is None else tuple(features)
    return reader(text, ReadOptions(chosen, sizes, most))


def _reader(path: str) -> Callable[[str, ReadOptions], RecordedStream] | None:
    return next((reader for ending, reader in ENDINGS.items() if path.lower().endswith(ending)), None)


def _hash_size(name: str, value: int) -> int:
    size = check_int(name, value, 1)
    if size > MOST_ROWS:
        raise InputError(f"{name} {size} exceeds the {MOST_ROWS} rows that a table may have")
    return size
