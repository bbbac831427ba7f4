"""Streams of ids: batches of ids by feature, read from files, and what is counted in them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from cachetools import LRUCache, cached
from tqdm import tqdm

from shardgym.errors import InputError, UnknownNameError, check_int
from shardgym.files import check_file
from shardgym.tables.bags import Bags
from shardgym.tables.streams.readers import CriteoText, DlrmDatasets, Parquet, Reader, reading
from shardgym.tables.streams.statistics import Checksum, FeatureStatistics
from shardgym.tables.table import MOST_ROWS, RecordedIds

#: Features whose ids reach fewer rows are taken to have this many.
MIN_ROWS = 100

#: Ids of a feature that a recording may have: they take 1 GiB.
MOST_RECORDED_IDS = 2**27

#: What files of ids end in, and who reads them.
ENDINGS: dict[str, type[Reader]] = {
    ".pt": DlrmDatasets,
    ".pt.gz": DlrmDatasets,
    ".parquet": Parquet,
    ".tsv": CriteoText,
    ".txt": CriteoText,
    ".tsv.gz": CriteoText,
    ".txt.gz": CriteoText,
}


class IdStream(ABC):
    """Ids of some features, sample after sample, that can be read any number of times."""

    name: str  #: for display and errors
    features: tuple[str, ...]  #: their names, in the order of the source
    left_out: tuple[str, ...] = ()  #: columns of the source that are not features, each with its type
    batch_size: int | None = None  #: samples of the one batch that a source says it holds; None where it says nothing

    @abstractmethod
    def batches(self, batch_size: int, features: Sequence[str] | None = None) -> Iterator[dict[str, Bags]]:
        """Yield whole batches, ids by feature; samples at the end that fill no batch are left out.

        Args:
            batch_size: samples per batch.
            features: which; all of them when None.

        Raises:
            InputError: the source cannot be read, or holds something other than ids.
            UnknownNameError: it has no such feature.
        """

    @abstractmethod
    def rows(self, features: Sequence[str] | None = None) -> dict[str, int]:
        """Return how many rows the ids of features are of; all of them when None."""

    def statistics(self, batch_size: int, *, checksum: bool = False) -> dict[str, FeatureStatistics]:
        """Count the ids of all whole batches.

        Args:
            batch_size: samples per batch.
            checksum: whether to compute the checksum of a recording.

        Returns:
            Statistics by feature.

        Raises:
            InputError: the source cannot be read, holds something other than ids, or less than a batch.
        """
        batch_size = check_int("batch_size", batch_size, 1)
        found = {name: FeatureStatistics(rows, batch_size, checksum=checksum) for name, rows in self.rows(None).items()}
        batches = self.batches(batch_size, tuple(found))
        for batch in tqdm(batches, desc="counting ids", unit="batch", delay=1, leave=False, disable=None):
            for name, bags in batch.items():
                found[name].add(bags)
        if not all(counted.batches for counted in found.values()):
            raise InputError(f"{self.name}: has less than one batch of {batch_size} samples: use a smaller batch size")
        return found

    def checked(self, features: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of some features, or of all; raises `UnknownNameError` with the closest names."""
        for feature in features or ():
            if feature not in self.features:
                raise UnknownNameError(f"feature of {self.name}", feature, self.features)
        return self.features if features is None else tuple(dict.fromkeys(features))


class RecordedStream(IdStream):
    """Ids in a file; see `open_stream`."""

    def __init__(
        self, path: Path, features: Sequence[str] | None, hash_size: int | Mapping[str, int] | None, samples: int | None
    ) -> None:
        self.path = path
        self.name = str(path)
        with reading(path):
            reader = _reader(self.name)
            check_file(path)
            self._reader = reader(path)
        self.left_out = self._reader.left_out
        self.batch_size = self._reader.batch_size
        self.features = self._reader.features
        self.features = self.checked(features)
        sizes = hash_size if isinstance(hash_size, Mapping) else dict.fromkeys(self.features, hash_size)
        self.checked(tuple(sizes))
        #: What the ids of a feature are taken modulo; features whose ids are rows have none.
        self.hash_sizes = {name: size for name, size in sizes.items() if size is not None}
        for name, size in self.hash_sizes.items():
            if check_int(f"hash_size of '{name}'", size, 1) > MOST_ROWS:
                raise InputError(f"hash_size of '{name}' exceeds the {MOST_ROWS} rows that a table may have")
        lacking = [feature for feature in self.features if feature not in self.hash_sizes]
        if lacking and holds_hashes(path):
            raise InputError(f"{path}: ids of '{lacking[0]}' are 32-bit hashes: {_remedy(lacking[0])}")
        self._samples = None if samples is None else check_int("samples", samples, 1)
        self._rows = dict(self.hash_sizes)

    def batches(self, batch_size: int, features: Sequence[str] | None = None) -> Iterator[dict[str, Bags]]:
        """Yield whole batches, ids by feature; see `IdStream`."""
        left: dict[str, Bags] = {}
        for part in self._parts(self.checked(features)):
            whole = {name: _joined([left[name], bags]) for name, bags in part.items()} if left else part
            ends = range(batch_size, _samples(whole) + 1, batch_size)
            cut = {name: _pieces(bags, ends) for name, bags in whole.items()}
            for number in range(len(ends)):
                yield {name: pieces[number] for name, pieces in cut.items()}
            left = {name: pieces[-1] for name, pieces in cut.items()}

    def read(self, feature: str) -> Bags:
        """Return all ids of a feature; raises `InputError` when they are too many to be kept in memory."""
        kept: list[Bags] = []
        for part in self._parts(self.checked([feature])):
            kept.append(part[feature])
            if sum(len(bags.indices) for bags in kept) > MOST_RECORDED_IDS:
                raise InputError(
                    f"{self.name}: feature '{feature}' has more than {MOST_RECORDED_IDS} ids, the limit of a "
                    "recording: use fewer samples"
                )
        return _joined(kept)

    def rows(self, features: Sequence[str] | None = None) -> dict[str, int]:
        """Return the rows of features: the hash size, or what their ids reach, but at least 100.

        Raises:
            InputError: ids reach more rows than a table may have, and there is no hash size.
        """
        names = self.checked(features)
        unknown = [feature for feature in names if feature not in self._rows]
        reached = dict.fromkeys(unknown, MIN_ROWS)
        for part in self._parts(unknown) if unknown else ():
            for feature, bags in part.items():
                reached[feature] = max(reached[feature], int(bags.indices.max(initial=-1)) + 1)
        for feature, rows in reached.items():
            if rows > MOST_ROWS:
                raise self._looks_hashed(feature, rows - 1)
        self._rows |= reached
        return {feature: self._rows[feature] for feature in names}

    def _parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield ids as non-negative 64-bit integers, up to the last sample that is read."""
        count = 0
        with reading(self.path):
            for part in self._reader.parts(features):
                left = None if self._samples is None else self._samples - count
                taken = part if left is None else {name: bags.samples(0, left) for name, bags in part.items()}
                count += _samples(taken)
                yield {name: self._as_rows(name, bags) for name, bags in taken.items()}
                if count == self._samples:
                    return
        if not count:
            raise InputError(f"{self.name}: has no samples, expected at least one")

    def _as_rows(self, feature: str, bags: Bags) -> Bags:
        indices, lengths = bags
        if feature in self.hash_sizes:
            # An unsigned 64-bit hash is never negative.
            wide = indices if indices.dtype == np.uint64 else indices.astype(np.int64, copy=False)
            indices = wide % wide.dtype.type(self.hash_sizes[feature])
        if indices.dtype == np.uint64 and int(indices.max(initial=0)) >= 2**63:
            raise self._looks_hashed(feature, int(indices.max()))
        rows = indices.astype(np.int64, copy=False)
        if rows.size and int(rows.min()) < 0:
            raise InputError(
                f"{self.name}: feature '{feature}' has a negative id ({int(rows.min())}), expected ids >= 0; for "
                f"signed hashes, {_remedy(feature)}"
            )
        return Bags(rows, lengths.astype(np.int64, copy=False))

    def _looks_hashed(self, feature: str, largest: int) -> InputError:
        return InputError(
            f"{self.name}: feature '{feature}' has ids up to {largest:.1e}, which look hashed: {_remedy(feature)}"
        )


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
            column of ids or of lists of ids (`.parquet`); or text like Criteo's, with a label, 13 numbers and 26
            columns of hexadecimal ids between tabs (`.tsv`, `.txt`, also with `.gz`).
        features: names of the features to read; None for all. Criteo's are cat_0 to cat_25, those of dlrm_datasets
            start at t000.
        hash_size: ids are taken modulo this to become rows: one number for all features, or one by feature. By default
            ids are rows. Text needs it for each feature, because its ids are hashes of 32 bits.
        samples: read at most this many samples, from the first one on.

    Raises:
        InputError: the file cannot be read, its ending is unknown, or an argument is invalid.
        UnknownNameError: it has no such feature.
        MissingDependencyError: pyarrow is not installed, for Parquet.
    """
    return RecordedStream(Path(path), features, hash_size, samples)


def holds_ids(path: str) -> bool:
    """Say whether a file is one of ids, by what its name ends in."""
    return path.lower().endswith(tuple(ENDINGS))


def holds_hashes(path: str | Path) -> bool:
    """Say whether ids of a file are hashes, by what its name ends in: they need a hash size."""
    return _reader(str(path)) is CriteoText


def _reader(path: str) -> type[Reader]:
    for ending, reader in ENDINGS.items():
        if path.lower().endswith(ending):
            return reader
    raise InputError(f"cannot read ids from '{path}': files of ids end in {', '.join(ENDINGS)}")


def _remedy(feature: str) -> str:
    """Return the remedy for ids that are not rows, in Python and on the command line."""
    return (
        "pass hash_size, the number of rows that ids are taken modulo, to open_stream "
        f"(import-tables: --hash-size {feature}=ROWS)"
    )


def _pieces(bags: Bags, ends: Sequence[int]) -> list[Bags]:
    """Cut samples at some numbers; the last piece is what is left behind them."""
    places = np.concatenate([[0], np.cumsum(bags.lengths)])[list(ends)]
    pieces = zip(np.split(bags.indices, places), np.split(bags.lengths, list(ends)), strict=True)
    return [Bags(indices, lengths) for indices, lengths in pieces]


def _samples(bags: Mapping[str, Bags]) -> int:
    return len(next(iter(bags.values())).lengths)


def _joined(parts: Sequence[Bags]) -> Bags:
    if len(parts) == 1:
        return parts[0]
    return Bags(np.concatenate([part.indices for part in parts]), np.concatenate([part.lengths for part in parts]))


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
        InputError: the file is not found or cannot be read, holds fewer samples, or its ids differ from those of
            the checksum.
        UnknownNameError: it has no such feature.
    """
    folders = [Path(part) for part in os.environ.get(DATA_VARIABLE, "").split(os.pathsep) if part]
    path = next((folder / ids.file for folder in folders if (folder / ids.file).is_file()), None)
    if path is None:
        searched = ", ".join(map(str, folders)) or "not set"
        raise InputError(f"recorded ids need '{ids.file}': add its folder to {DATA_VARIABLE} (now: {searched})")
    sizes = None if ids.hash_size is None else {ids.feature: ids.hash_size}
    bags = open_stream(path, features=[ids.feature], hash_size=sizes, samples=ids.samples).read(ids.feature)
    if len(bags.lengths) != ids.samples:
        raise InputError(f"'{ids.feature}' of '{ids.file}' has {len(bags.lengths)} samples, expected {ids.samples}")
    checksum = Checksum()
    checksum.add(bags)
    if checksum.hexdigest() != ids.sha256:
        raise InputError(f"'{ids.feature}' of '{ids.file}' differs from the ids that this table was made from")
    return bags
