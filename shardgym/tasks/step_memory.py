"""What a training step takes on a device besides weights and optimiser state: inputs, ids, outputs, gradients."""

import functools
import math
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.records import CONFIG, Number, Record, Whole
from shardgym.tables.row_access import access_share
from shardgym.tables.streams.stream import recorded_bags
from shardgym.tables.table import EmbeddingTable, RecordedIds

#: Bytes of an id, of the length of a bag, and of the weight of an id.
ID_BYTES = 8
LENGTH_BYTES = 8
WEIGHT_BYTES = 4
#: Operators pool in FP32 where a quantiser narrows what travels.
_POOLED_BYTES = 4

Copies = Annotated[Number, Field(ge=0, le=1000)]
Reserved = Annotated[Whole, Field(ge=0, le=2**60)]


@dataclass(frozen=True, config=CONFIG)
class StepMemory(Record):
    """What a training step keeps in memory at its peak, besides weights and optimiser state.

    The defaults are fitted to the peaks of TorchRec 1.8 (`studies/step_memory`), with gloo's copies for tables cut by
    rows. `id_copies`, `output_copies`, `partial_sum_copies` and `gradient_copies` belong to shards and grow with their
    load. The others are the same on every device, whatever the plan. Sums of tables cut by rows that a device receives
    without holding a piece of them are not counted.

    Attributes:
        reserved_bytes: bytes for the dense part of the model, its activations and the framework on each device; one
            number stands for all devices.
        input_copies: copies of the batch of a device: ids, their weights and lengths. TorchRec's pipelines hold two or
            three, its heuristic reservation counts 20.
        id_copies: copies of the ids, weights and lengths that a shard receives: as they arrive, in order, and as the
            backward pass sorts them.
        output_copies: copies of the outputs of a shard with all rows of its table: values and gradients. An unpooled
            table puts out a row for each id that the shard receives.
        partial_sum_copies: copies of the partial sums of a shard with some of the rows.
        joined_output_copies: copies of the outputs of all tables for the samples of a device: as they arrive, joined,
            and as gradients.
        gradient_copies: copies of the dense gradient of a shard that all devices hold; two with
            DistributedDataParallel.
        quantizer_copies: copies that a quantiser makes of a shard's FP32 outputs if the task communicates in FP16. 0:
            operators put out FP16 themselves.
        hot_quantile: quantile of batches, by ids that fall into a shard, in which a plan has to fit: 0.999 is the worst
            of a thousand. Recorded ids have a hottest batch of their own.
    """

    reserved_bytes: tuple[Reserved, ...] = (0,)
    input_copies: Copies = 2.0
    id_copies: Copies = 2.5
    output_copies: Copies = 1.25
    partial_sum_copies: Copies = 1.5
    joined_output_copies: Copies = 2.0
    gradient_copies: Copies = 2.0
    quantizer_copies: Copies = 0.5
    hot_quantile: Annotated[Number, Field(ge=0.5, lt=1)] = 0.999

    @field_validator("reserved_bytes", mode="before")
    @classmethod
    def _one_or_each(cls, value: Any) -> Any:
        return (value,) if hasattr(value, "__index__") and not isinstance(value, bool) else value

    @field_validator("reserved_bytes")
    @classmethod
    def _not_empty(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value:
            raise ValueError("expected a number of bytes, or one for each device")
        return value

    def reserved_on(self, device: int) -> int:
        """Bytes that are reserved on a device."""
        return self.reserved_bytes[0] if len(self.reserved_bytes) == 1 else self.reserved_bytes[device]

    def id_bytes(self, table: EmbeddingTable, lookups: float, samples: int) -> int:
        """Bytes that a shard receives: ids, by their number and that of samples."""
        return math.ceil(self.id_copies * _input_bytes(table, lookups, samples))

    def column_bytes(self, outputs: float, element_bytes: int, *, whole_rows: bool) -> int:
        """Bytes that one column of a shard's outputs takes; `whole_rows`: the shard has all rows of its table.

        Outputs are the samples that it serves, times features; of an unpooled table the ids that it receives.
        """
        copies = self.output_copies if whole_rows else self.partial_sum_copies
        return math.ceil(outputs * (copies * self._pooled_bytes(element_bytes) + self._quantized_bytes(element_bytes)))

    def quantizer_bytes(self, outputs: float, element_bytes: int) -> int:
        """Bytes of `column_bytes` that a quantiser takes; arguments as there."""
        return math.floor(outputs * self._quantized_bytes(element_bytes))

    def own_parts(self, tables: tuple[EmbeddingTable, ...], samples: int, element_bytes: int) -> tuple[int, int]:
        """Bytes of inputs, and of joined outputs, of a device's own samples, without what is reserved."""
        lookups = [hottest_lookups(table, samples, self.hot_quantile) for table in tables]
        inputs = sum(_input_bytes(*of_table, samples) for of_table in zip(tables, lookups, strict=True))
        rows = [samples * t.num_features if t.is_pooled else ids for t, ids in zip(tables, lookups, strict=True)]
        values = sum(table.embedding_dim * number for table, number in zip(tables, rows, strict=True))
        outputs = values * self.joined_output_copies * self._pooled_bytes(element_bytes)
        return math.ceil(self.input_copies * inputs), math.ceil(outputs)

    def _quantized_bytes(self, element_bytes: int) -> float:
        """Bytes that a quantiser takes for a value."""
        return self.quantizer_copies * element_bytes if element_bytes < _POOLED_BYTES else 0.0

    def _pooled_bytes(self, element_bytes: int) -> int:
        """Bytes of a pooled value: FP32 where a quantiser makes what travels of it."""
        return _POOLED_BYTES if self.quantizer_copies else element_bytes


def _input_bytes(table: EmbeddingTable, lookups: float, samples: int) -> float:
    """Bytes of this many ids with their weights, and of the lengths of all bags."""
    return lookups * (ID_BYTES + WEIGHT_BYTES * table.weighted) + samples * table.num_features * LENGTH_BYTES


class Lookups(NamedTuple):
    """Ids that fall into a shard: in an average batch and in the hottest."""

    average: float
    hottest: float


def shard_lookups(table: EmbeddingTable, samples: int, start: int, stop: int, quantile: float) -> Lookups:
    """Return how many ids of a batch fall into rows `start` to `stop` of a table, the latter left out.

    Args:
        table: table that the rows are of.
        samples: samples of a batch.
        start: first row of the shard.
        stop: row after the last.
        quantile: over batches, of the hottest one. Drawn ids fall into rows independently, and bags of
            `lengths="poisson"` vary as well, so that their number is near normal. Of recorded ids it is the largest
            number in any whole batch of the record.

    Raises:
        InputError: recorded ids cannot be found, differ from their checksum, or hold fewer samples.
    """
    if isinstance(table.ids, RecordedIds):
        batches = _recorded_batches(table.ids, samples)
        counts = [int(np.searchsorted(ids, stop) - np.searchsorted(ids, start)) for ids in batches]
        return Lookups(sum(counts) / len(counts), max(counts))
    share = access_share(table, start, stop)
    total = samples * table.pooling_factor
    mean = total * share
    is_poisson = table.ids.lengths == "poisson"
    variance = mean if is_poisson else mean * (1 - share)
    hottest = mean + NormalDist().inv_cdf(quantile) * math.sqrt(max(0.0, variance))
    return Lookups(mean, hottest if is_poisson else min(hottest, total))


def hottest_lookups(table: EmbeddingTable, samples: int, quantile: float) -> float:
    """Return the ids of this many samples of a table in the hottest batch, see `shard_lookups`."""
    if samples == 0:
        return 0.0
    if isinstance(table.ids, RecordedIds):
        return max(map(len, _recorded_batches(table.ids, samples)))
    return shard_lookups(table, samples, 0, table.num_embeddings, quantile).hottest


@functools.lru_cache(maxsize=64)
def _recorded_batches(ids: RecordedIds, samples: int) -> list[Ints]:
    """Return the sorted ids of each whole batch of a record; raises `InputError` where it holds none."""
    if samples > ids.samples:
        raise InputError(f"batch size {samples} exceeds the {ids.samples} samples recorded in '{ids.file}'")
    whole = recorded_bags(ids)
    return [np.sort(whole.samples(n * samples, samples).indices) for n in range(ids.samples // samples)]
