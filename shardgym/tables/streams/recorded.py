"""What `RecordedIds` name: found in the folders of `SHARDGYM_DATA`, read, and held against its checksum."""

from __future__ import annotations

import os
from pathlib import Path

from cachetools import LRUCache, cached

from shardgym.errors import InputError
from shardgym.tables.bags import Bags
from shardgym.tables.streams.statistics import Checksum
from shardgym.tables.streams.stream import open_stream
from shardgym.tables.table import RecordedIds

#: Environment variable with the folders that are searched for recorded ids, separated like PATH.
DATA_VARIABLE = "SHARDGYM_DATA"

#: Bytes of recordings that are kept in memory.
_KEPT_BYTES = 2**30


def _bytes(bags: Bags) -> int:
    return bags.indices.nbytes + bags.lengths.nbytes


@cached(LRUCache(_KEPT_BYTES, getsizeof=_bytes))
def recorded_bags(ids: RecordedIds) -> Bags:
    """Return all recorded samples.

    Raises:
        InputError: the file is not found or cannot be read, holds fewer samples, or its ids are others than those that
            the checksum is of.
        UnknownNameError: it has no such feature.
    """
    folders = [Path(part) for part in os.environ.get(DATA_VARIABLE, "").split(os.pathsep) if part]
    path = next((folder / ids.file for folder in folders if (folder / ids.file).is_file()), None)
    if path is None:
        searched = ", ".join(map(str, folders)) or "not set"
        raise InputError(f"recorded ids need '{ids.file}': put its folder into {DATA_VARIABLE} (now: {searched})")
    sizes = None if ids.hash_size is None else {ids.feature: ids.hash_size}
    bags = open_stream(path, features=[ids.feature], hash_size=sizes, samples=ids.samples).read(ids.feature)
    if len(bags.lengths) != ids.samples:
        raise InputError(f"'{ids.feature}' of '{ids.file}' has {len(bags.lengths)} samples, expected {ids.samples}")
    checksum = Checksum()
    checksum.add(bags)
    if checksum.hexdigest() != ids.sha256:
        raise InputError(f"'{ids.feature}' of '{ids.file}' differs from the ids that this table was made from")
    return bags
