"""Recorded ids: found by file name, checked against their checksum, cached per process."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.ids.distribution import RecordedIds
from shardgym.ids.recording import read_bags

#: Folders that are searched for recorded ids, separated like PATH.
DATA_VARIABLE = "SHARDGYM_DATA"


def bags_digest(indices: Ints, lengths: Ints) -> str:
    """SHA-256 over one table's lengths and ids as little-endian 64-bit integers."""
    digest = hashlib.sha256(lengths.astype("<i8").tobytes())
    digest.update(indices.astype("<i8").tobytes())
    return digest.hexdigest()


def find_data_file(name: str) -> Path:
    """Find a data file in the folders of `SHARDGYM_DATA`; raises `InputError` when it is in none of them."""
    folders = [Path(part) for part in os.environ.get(DATA_VARIABLE, "").split(os.pathsep) if part]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    looked = ", ".join(map(str, folders)) or "not set"
    raise InputError(f"recorded ids need '{name}': put its folder into {DATA_VARIABLE} (now: {looked})")


def recorded_bags(ids: RecordedIds, batch_size: int) -> tuple[Ints, Ints]:
    """Return (indices, lengths) of the first `batch_size` recorded samples.

    Raises:
        InputError: file not found, checksum differs, or fewer samples recorded than asked for.
    """
    if batch_size > ids.batch_size:
        raise InputError(f"batch size {batch_size} exceeds the {ids.batch_size} samples recorded in '{ids.file}'")
    indices, lengths = _load(ids)
    lengths = lengths[:batch_size]
    return indices[: int(lengths.sum())], lengths


@functools.lru_cache(maxsize=64)
def _load(ids: RecordedIds) -> tuple[Ints, Ints]:
    indices, lengths = read_bags(find_data_file(ids.file), ids.table_index)
    if bags_digest(indices, lengths) != ids.sha256:
        raise InputError(f"table {ids.table_index} of '{ids.file}' differs from the ids this task was made from")
    return indices, lengths
