"""What streams that are read from files have in common: samples regrouped into batches, and ids made rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shardgym.errors import InputError
from shardgym.tables.bags import Bags
from shardgym.tables.streams.stream import IdStream
from shardgym.tables.table import MOST_ROWS

#: Features whose ids reach fewer rows are taken to have this many.
MIN_ROWS = 100

#: Ids that a recording may have: read together, they take 1 GiB.
MOST_RECORDED_IDS = 2**27


@dataclass(frozen=True)
class ReadOptions:
    """What of a file is read, and how.

    Attributes:
        features: names; all that the file has when None.
        hash_sizes: what ids are taken modulo, for all features or by feature; those that have none are rows.
        samples: are read at most; all when None.
    """

    features: tuple[str, ...] | None = None
    hash_sizes: int | Mapping[str, int] = field(default_factory=dict)
    samples: int | None = None


class RecordedStream(IdStream):
    """Ids in a file.

    Args:
        path: of the file.
        features: that it has.
        options: what of it is read.

    Attributes:
        path: of the file.
        hash_sizes: what the ids of a feature are taken modulo; features whose ids are rows have none.

    Raises:
        UnknownNameError: options name a feature that the file has not.
    """

    def __init__(self, path: str | Path, features: tuple[str, ...], options: ReadOptions) -> None:
        self.path = Path(path)
        self.name = str(path)
        self.features = features
        self.features = self.checked(options.features)
        sizes = options.hash_sizes
        self.hash_sizes = dict(sizes) if isinstance(sizes, Mapping) else dict.fromkeys(self.features, sizes)
        self.checked(tuple(self.hash_sizes))
        self._samples = options.samples
        self._rows = dict(self.hash_sizes)

    @abstractmethod
    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield ids of the file as they are there, in parts of any number of samples, the same of all features."""

    def batches(self, batch_size: int, features: Sequence[str] | None = None) -> Iterator[dict[str, Bags]]:
        """Yield whole batches, ids by feature; see `IdStream`."""
        left: dict[str, Bags] = {}
        for part in self._rows_in_parts(self.checked(features)):
            whole = {name: _joined([left[name], bags]) for name, bags in part.items()} if left else part
            count = _samples(whole)
            batches = count // batch_size
            cut = {name: _Cut(bags, batch_size) for name, bags in whole.items()}
            for number in range(batches):
                yield {name: bags.batch(number) for name, bags in cut.items()}
            left = {name: bags.rest(batches) for name, bags in cut.items()} if count % batch_size else {}

    def read(self, feature: str) -> Bags:
        """Return all ids of a feature; raises `InputError` when they are too many to be kept in memory."""
        kept: list[Bags] = []
        ids = 0
        for part in self._rows_in_parts(self.checked([feature])):
            kept.append(part[feature])
            ids += len(part[feature].indices)
            if ids > MOST_RECORDED_IDS:
                raise InputError(
                    f"{self.name}: feature '{feature}' has more than the {MOST_RECORDED_IDS} ids that a recording may "
                    "have: take fewer samples"
                )
        return _joined(kept)

    def rows(self, features: Sequence[str] | None = None) -> dict[str, int]:
        """Return the rows of features: the hash size, or what their ids reach, but at least 100.

        Raises:
            InputError: ids reach more rows than a table may have, and there is no hash size.
        """
        names = self.checked(features)
        unknown = [feature for feature in names if feature not in self._rows]
        for group in [[feature] for feature in unknown] if self.read_together == 1 else [unknown] if unknown else []:
            reached = dict.fromkeys(group, MIN_ROWS)
            for part in self._rows_in_parts(group):
                for feature, bags in part.items():
                    reached[feature] = max(reached[feature], int(bags.indices.max(initial=-1)) + 1)
            for feature, rows in reached.items():
                if rows > MOST_ROWS:
                    raise self._looks_hashed(feature, rows - 1)
            self._rows |= reached
        return {feature: self._rows[feature] for feature in names}

    def _rows_in_parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield ids as 64-bit integers that are no less than 0, up to the last sample that is read."""
        left = self._samples
        found = False
        for part in self.parts(features):
            taken = part if left is None else {name: bags.samples(0, left) for name, bags in part.items()}
            yield {name: self._as_rows(name, bags) for name, bags in taken.items()}
            found = found or _samples(taken) > 0
            if left is not None:
                left -= _samples(taken)
                if left == 0:
                    return
        if not found:
            raise InputError(f"{self.name}: has no samples, expected a row for each")

    def _as_rows(self, feature: str, bags: Bags) -> Bags:
        indices, lengths = bags
        if feature in self.hash_sizes:
            # A hash of 64 bits without a sign is no negative number.
            wide = indices if indices.dtype == np.uint64 else indices.astype(np.int64, copy=False)
            indices = wide % wide.dtype.type(self.hash_sizes[feature])
        if indices.dtype == np.uint64 and int(indices.max(initial=0)) >= 2**63:
            raise self._looks_hashed(feature, int(indices.max()))
        rows = indices.astype(np.int64, copy=False)
        if rows.size and int(rows.min()) < 0:
            raise InputError(
                f"{self.name}: feature '{feature}' has a negative id ({int(rows.min())}), expected rows from 0 on: of "
                f"hashes with a sign, {hash_size_remedy(feature)}"
            )
        return Bags(rows, lengths.astype(np.int64, copy=False))

    def _looks_hashed(self, feature: str, largest: int) -> InputError:
        return InputError(
            f"{self.name}: feature '{feature}' has ids up to {largest:.1e}, which look hashed: "
            f"{hash_size_remedy(feature)}"
        )


def hash_size_remedy(feature: str) -> str:
    """Return the end of messages about ids that are no rows, which fits Python and the command line."""
    return (
        "give hash_size, the rows of its table, which ids are taken modulo, to open_stream "
        f"(import-tables: --hash-size {feature}=ROWS)"
    )


class _Cut:
    """A feature's bags in batches.

    Args:
        bags: any number of samples.
        batch_size: of a batch.
    """

    def __init__(self, bags: Bags, batch_size: int) -> None:
        self._bags = bags
        self._batch_size = batch_size
        ends = np.concatenate([[0], np.cumsum(bags.lengths)])
        self._starts = ends[::batch_size]

    def batch(self, number: int) -> Bags:
        """Return the batch of a number."""
        lengths = self._bags.lengths[number * self._batch_size : (number + 1) * self._batch_size]
        return Bags(self._bags.indices[self._starts[number] : self._starts[number + 1]], lengths)

    def rest(self, batches: int) -> Bags:
        """Return what follows so many batches."""
        return Bags(self._bags.indices[self._starts[batches] :], self._bags.lengths[batches * self._batch_size :])


def _samples(bags: Mapping[str, Bags]) -> int:
    return len(next(iter(bags.values())).lengths)


def _joined(parts: Sequence[Bags]) -> Bags:
    """Return samples of parts that follow each other."""
    if len(parts) == 1:
        return parts[0]
    return Bags(np.concatenate([part.indices for part in parts]), np.concatenate([part.lengths for part in parts]))
