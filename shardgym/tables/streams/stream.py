"""What streams of ids have in common: batches of ids by feature, and counting them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from tqdm import tqdm

from shardgym.arguments import check_int
from shardgym.errors import InputError, UnknownNameError
from shardgym.tables.bags import Bags
from shardgym.tables.streams.frequencies import MOST_COUNTED_ROWS
from shardgym.tables.streams.statistics import FeatureStatistics


class IdStream(ABC):
    """Ids of some features, sample after sample, that can be read any number of times.

    Attributes:
        name: for display and errors.
        features: their names, in the order of the source.
        left_out: columns of the source that are no features, each with a reason.
        batch_size: samples of the one batch that a source says it holds; None where it says nothing.
        read_together: features that the source reads together, whichever are asked for; 1 where each is read alone.
    """

    name: str
    features: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    batch_size: int | None = None
    read_together = 1

    @abstractmethod
    def batches(self, batch_size: int, features: Sequence[str] | None = None) -> Iterator[dict[str, Bags]]:
        """Yield whole batches, ids by feature; samples at the end that fill no batch are left out.

        Args:
            batch_size: samples per batch.
            features: which; all of them when None.

        Raises:
            InputError: the source cannot be read, or holds what is no id.
            UnknownNameError: it has no such feature.
        """

    @abstractmethod
    def rows(self, features: Sequence[str] | None = None) -> dict[str, int]:
        """Return how many rows the ids of features are of; all of them when None."""

    def statistics(
        self,
        batch_size: int,
        features: Sequence[str] | None = None,
        *,
        ranks: int = 1,
        frequencies: bool = False,
        checksum: bool = False,
    ) -> dict[str, FeatureStatistics]:
        """Count the ids of all whole batches.

        Memory is that of a batch and of counters: where frequencies are counted, features are read in groups whose
        counters take at most 512 MiB together.

        Args:
            batch_size: samples per batch.
            features: which; all of them when None.
            ranks: parts of a batch whose distinct rows are counted, too: the samples of each rank.
            frequencies: whether to count how often each row is looked up.
            checksum: whether to compute the checksum of a recording.

        Returns:
            Statistics by feature.

        Raises:
            InputError: the source cannot be read, holds what is no id, or holds less than a batch.
            UnknownNameError: it has no such feature.
            MissingDependencyError: frequencies are asked of a table with more than 2**27 rows, for which the extra
                `sketches` is needed.
        """
        batch_size = check_int("batch_size", batch_size, 1)
        ranks = check_int("ranks", ranks, 1)
        names = self.checked(features)
        rows = self.rows(names)
        found: dict[str, FeatureStatistics] = {}
        groups = list(self._groups(names, rows, frequencies))
        for group in tqdm(groups, desc="counting ids", unit="pass", delay=1, leave=False, disable=None):
            of_group = {
                name: FeatureStatistics(rows[name], batch_size, ranks, frequencies=frequencies, checksum=checksum)
                for name in group
            }
            for batch in self.batches(batch_size, group):
                for name, bags in batch.items():
                    of_group[name].add(bags)
            found |= of_group
        if not all(counted.batches for counted in found.values()):
            raise InputError(f"{self.name}: has no whole batch of {batch_size} samples: give a smaller batch size")
        return found

    def checked(self, features: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of some features, or of all; raises `UnknownNameError` with the closest names."""
        for feature in features or ():
            if feature not in self.features:
                raise UnknownNameError(f"feature of {self.name}", feature, self.features)
        return self.features if features is None else tuple(dict.fromkeys(features))

    def _groups(self, names: Iterable[str], rows: dict[str, int], frequencies: bool) -> Iterator[tuple[str, ...]]:
        """Yield features that are read together."""
        group: list[str] = []
        counted = 0
        for name in names:
            own = min(rows[name], MOST_COUNTED_ROWS) if frequencies else 0
            if group and (self.read_together == 1 or counted + own > MOST_COUNTED_ROWS):
                yield tuple(group)
                group = []
                counted = 0
            group.append(name)
            counted += own
        if group:
            yield tuple(group)
