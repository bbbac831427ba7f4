"""Measured samples: Parquet files as they are collected, and arrays that models are trained and tested on.

A data set is a folder; every `compute*.parquet` and `steps*.parquet` in it belongs to it. A row of "compute" is a shard
set that was measured alone, a row of "steps" a device that holds something in complete steps of a plan. Times of steps
are CPU times of the device's process, of work alone: exchanges between devices are not in them.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as record

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Shards
from shardgym.errors import InputError, import_extra, one_line
from shardgym.files import check_file, write_whole
from shardgym.records import CONFIG, Name, Record
from shardgym.tables.table import REUSE_BINS
from shardgym.tasks.task import ELEMENT_BYTES, OPTIMIZER_STATE

Strings = npt.NDArray[np.str_]

#: "compute": shard sets of one device, kernels timed alone. "steps": devices in complete steps.
Kind = Literal["compute", "steps"]

#: Parts of a complete step, beside forward and backward, that are work of a device alone, in order: joining the ids of
#: the device's own samples; counting them by the lengths of bags; bringing received ids into the order of shards;
#: joining pooled values of all devices; joining their gradients in the order in which they are sent.
STEP_PARTS = ("pack_ids", "count_ids", "group_ids", "join_outputs", "pack_gradients")

_METADATA_KEY = b"shardgym"
_PURPOSE = "reading and writing samples"


@record(frozen=True, config=CONFIG)
class DataInfo(Record):
    """What a file of samples says about itself, under the key `shardgym` of its metadata; and what a folder does."""

    hardware: Name  #: tag of the machine that was measured
    versions: dict[str, str]  #: of what can change a time
    settings: dict[str, Any]  #: of the collection
    created: Annotated[str, Field(min_length=1)]  #: UTC, ISO 8601
    kind: Literal["compute", "steps", "both"] = "both"
    schema: Literal["shardgym.samples/1"] = "shardgym.samples/1"


def _schema(kind: Kind) -> Any:
    """Return the `pyarrow.Schema` of the rows of a kind."""
    pa = import_extra("pyarrow", _PURPOSE)
    text = pa.string()
    whole = pa.int64()
    small = pa.int32()
    number = pa.float64()
    columns = {
        "sample_id": text,  # unique within a data set
        "role": text,  # who may learn from it: the oracle, the judge, or nobody
        "content": text,  # digest of everything the time depends on; repeats share it
        "repeat": small,  # 0 for the first measurement of a content, 1 for the next
        "batch_size": whole,
        "precision": text,
        "optimizer": text,
        # One entry per shard: rows, columns, mean ids per sample that fall into it; and of its table.
        "num_embeddings": pa.list_(whole),
        "embedding_dim": pa.list_(small),
        "pooling_factor": pa.list_(number),
        "reuse_histogram": pa.list_(pa.list_(pa.float32(), REUSE_BINS)),
        "table_name": pa.list_(text),
        "forward_ms": number,
        "backward_ms": number,  # with the optimiser's update
        "noise": number,  # relative standard error of forward plus backward over the steps of this measurement
    }
    if kind == "steps":
        columns |= {
            "plan": text,  # rows with the same plan, repeat and file were measured in the same steps
            "device": small,
            "num_devices": small,  # of the plan; those that hold nothing have no row
            "samples": whole,  # this device's share of the batch
            "pace": number,  # of the machine at the time, see `shardgym.costs.fbgemm.pace`
            "plan_shards": whole,  # shards on all devices
            "plan_ids": number,  # that all shards look up in a step; ids that two column shards need count twice
            "plan_columns": whole,  # of all shards
            **{f"{part}_ms": number for part in STEP_PARTS},
        }
    return pa.schema([pa.field(name, of, nullable=False) for name, of in columns.items()])


def write_rows(path: Path, kind: Kind, rows: Sequence[dict[str, Any]], info: DataInfo) -> None:
    """Write one file of samples; it appears whole or not at all."""
    pa = import_extra("pyarrow", _PURPOSE)
    pq = import_extra("pyarrow.parquet", _PURPOSE)
    metadata = {_METADATA_KEY: dataclasses.replace(info, kind=kind).to_json().encode()}
    buffer = io.BytesIO()
    try:
        table = pa.Table.from_pylist(rows, schema=_schema(kind).with_metadata(metadata))
        pq.write_table(table, buffer, compression="zstd")
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{path}: cannot write these {kind} rows: {one_line(error)}") from None
    write_whole(path, buffer.getvalue())


def read_file(path: Path, kind: Kind) -> tuple[DataInfo, Any]:
    """Return what a file says about itself, and a `pyarrow.Table` of the columns of its kind."""
    pa = import_extra("pyarrow", _PURPOSE)
    pq = import_extra("pyarrow.parquet", _PURPOSE)
    check_file(path)
    schema = _schema(kind)
    try:
        table = pq.ParquetFile(path).read()
        info = (table.schema.metadata or {})[_METADATA_KEY]
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise InputError(f"{path}: not a complete file of {kind} samples ({one_line(error)})") from None
    return DataInfo.from_json(info, source=f"{path}: metadata"), table


def data_files(folder: str | Path, kind: Kind) -> list[Path]:
    """Return the files of a kind in a data set, sorted; there may be none."""
    return sorted(Path(folder).glob(f"{kind}*.parquet"))


def collection_name(path: Path, folders: Sequence[str | Path]) -> str:
    """Return what the collection of a file is called: files of several folders may have the same names."""
    return path.name if len(folders) == 1 else f"{path.parent.name}/{path.name}"


@dataclass(frozen=True)
class ComputeSamples:
    """N measured contents."""

    role: Strings  #: of each sample: who learns from it, what it is, whether it was measured before; shape (N,)
    content: Strings
    repeat: Ints
    collection: Strings  #: name of the file that a sample was read from: files are of other days, and of other draws
    shards: Shards  #: of all samples, one sample after the other
    counts: Ints  #: shards of each sample, shape (N,)
    ms: Floats  #: forward and backward times, shape (N, 2)
    precision: Strings
    optimizer: Strings

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, index: Ints) -> ComputeSamples:
        """Return the samples at `index` (positions, not a mask), in that order."""
        rows = ragged(self.counts, index)
        rest = {name: value[index] for name, value in vars(self).items() if name != "shards"}
        return ComputeSamples(shards=self.shards.take(rows), **rest)

    def of(self, role: str) -> ComputeSamples:
        """Return the samples of one role."""
        return self.take(np.flatnonzero(self.role == role))


@dataclass(frozen=True)
class StepSamples:
    """N devices in complete steps."""

    compute: ComputeSamples  #: what each device holds, with its forward and backward times
    pace: Floats  #: pace of the machine, shape (N,)
    samples: Ints  #: of the device, and of its plan, shape (N,)
    plan_shards: Ints
    plan_ids: Floats
    plan_columns: Ints
    parts_ms: Floats  #: times of `STEP_PARTS`, shape (N, 5)

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: Ints) -> StepSamples:
        """Return the devices at `index` (positions, not a mask), in that order."""
        rest = {name: value[index] for name, value in vars(self).items() if name != "compute"}
        return StepSamples(compute=self.compute.take(index), **rest)

    def of(self, role: str) -> StepSamples:
        """Return the devices of one role."""
        return self.take(np.flatnonzero(self.compute.role == role))


def read_compute(*folders: str | Path) -> ComputeSamples:
    """Read all compute samples of one or several data sets; there may be none.

    Collections are named as their files are; of several folders, the folder's name stands before it.

    Raises:
        InputError: a file is not as it should be, see `read_file`.
        MissingDependencyError: pyarrow is not installed.
    """
    return _compute_samples(*_read_all(folders, "compute"))


def read_steps(*folders: str | Path) -> StepSamples:
    """Read all devices in complete steps of one or several data sets; otherwise like `read_compute`."""
    table, collection = _read_all(folders, "steps")
    return StepSamples(
        compute=_compute_samples(table, collection),
        pace=_values(table, "pace"),
        samples=_values(table, "samples"),
        plan_shards=_values(table, "plan_shards"),
        plan_ids=_values(table, "plan_ids"),
        plan_columns=_values(table, "plan_columns"),
        parts_ms=np.column_stack([_values(table, f"{part}_ms") for part in STEP_PARTS]),
    )


def _read_all(folders: Sequence[str | Path], kind: Kind) -> tuple[Any, Strings]:
    """Return a `pyarrow.Table` of all files, and the name of the collection that each row is from."""
    paths = [path for folder in folders for path in data_files(folder, kind)]
    tables = [read_file(path, kind)[1] for path in paths] or [_schema(kind).empty_table()]
    names = np.array([collection_name(path, folders) for path in paths] or [""], dtype=np.str_)
    return import_extra("pyarrow", _PURPOSE).concat_tables(tables), np.repeat(names, [t.num_rows for t in tables])


def _compute_samples(table: Any, collection: Strings) -> ComputeSamples:
    counts = np.asarray(
        table.column("num_embeddings").combine_chunks().value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64
    )
    precision = _strings(table, "precision")
    optimizer = _strings(table, "optimizer")
    state = np.array([OPTIMIZER_STATE[name] for name in optimizer], dtype=np.float64).reshape(-1, 2)
    shards = Shards(
        rows=_values(table, "num_embeddings").astype(np.float64),
        columns=_values(table, "embedding_dim").astype(np.float64),
        pooling=_values(table, "pooling_factor"),
        reuse=_values(table, "reuse_histogram").astype(np.float64).reshape(-1, REUSE_BINS),
        batch=np.repeat(_values(table, "batch_size").astype(np.float64), counts),
        element_bytes=np.repeat(np.array([ELEMENT_BYTES[name] for name in precision], dtype=np.float64), counts),
        state_per_weight=np.repeat(state[:, 0], counts),
        state_per_row=np.repeat(state[:, 1], counts),
    )
    return ComputeSamples(
        role=_strings(table, "role"),
        content=_strings(table, "content"),
        repeat=_values(table, "repeat").astype(np.int64),
        collection=collection,
        shards=shards,
        counts=counts,
        ms=np.column_stack([_values(table, "forward_ms"), _values(table, "backward_ms")]),
        precision=precision,
        optimizer=optimizer,
    )


def _values(table: Any, name: str) -> npt.NDArray[Any]:
    """Return the values of a column, lists one after the other."""
    column = table.column(name).combine_chunks()
    while hasattr(column.type, "value_type"):
        column = column.flatten()
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _strings(table: Any, name: str) -> Strings:
    return np.array(table.column(name).to_pylist(), dtype=np.str_)


def joined(parts: Iterable[ComputeSamples]) -> ComputeSamples:
    """Return several samples as one, in order."""
    columns = [vars(part) for part in parts]
    found = {name: np.concatenate([of[name] for of in columns]) for name in columns[0] if name != "shards"}
    shards = [np.concatenate([getattr(of["shards"], field.name) for of in columns]) for field in fields(Shards)]
    return ComputeSamples(shards=Shards(*shards), **found)


def ragged(counts: Ints, index: Ints) -> Ints:
    """Return positions in a flat list of the members of the groups at `index`, group after group."""
    ends = np.cumsum(counts)
    sizes = counts[index]
    starts = np.repeat((ends - counts)[index] - (np.cumsum(sizes) - sizes), sizes)
    return np.asarray(starts + np.arange(sizes.sum()), dtype=np.int64)
