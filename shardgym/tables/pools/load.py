"""Pools by name or file, in JSON or CSV. With the package come two synthetic ones and the tables of published models.

The pool `synthetic-2021` is 856 made-up tables that together behave like the dlrm_datasets 2021 file. Published of that
file (`embedding_bag/2021/locality_stats.txt`) are totals over its tables at batch 65,536: ids, distinct rows, and both
reuse histograms, which the ids of this pool, drawn with `draw_bags`, match. Per table nothing is published: rows are
log-normal up to 20 million, a tenth of the tables small vocabularies from 100 rows; half are single-valued features
that some samples lack, the others have a log-normal pooling factor up to about 200; every table has its own skew.
Widths are not part of the file: `embedding_dim` is a placeholder of 16, suites draw their own.

The pool `synthetic-2022` stands for the 788 tables of the 2022 file at batch 131,072 in the same way, with another
population on purpose. Nothing that ships was trained on it.
"""

import csv
import functools
import io
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError, UnknownNameError
from shardgym.files import read_text
from shardgym.records import CONFIG, Record, parse_json
from shardgym.tables.streams.stream import ENDINGS, holds_ids, open_stream
from shardgym.tables.table import (
    DEFAULT_BATCH_SIZE,
    REUSE_BINS,
    EmbeddingTable,
    Optimizer,
    Precision,
    TablePool,
    UniformIds,
    ZipfIds,
)
from shardgym.tables.tables_of_streams import PLACEHOLDER_DIM, pool_of_stream

_DATA = Path(__file__).with_name("data")

#: Name of the synthetic pool that suites and training draw from.
SYNTHETIC = "synthetic-2021"

#: Batch sizes of the synthetic pools, which their reuse histograms are of.
SYNTHETIC_BATCH = {SYNTHETIC: DEFAULT_BATCH_SIZE, "synthetic-2022": 131_072}

#: Columns of the files of synthetic tables, one table per line.
BIN_COLUMNS = tuple(f"bin_{i}" for i in range(REUSE_BINS))
COLUMNS = ("name", "num_embeddings", "pooling_factor", "s", "q", *BIN_COLUMNS)

_NUMBERS = {"num_embeddings": int, "embedding_dim": int, "pooling_factor": float, "zipf_s": float, "zipf_q": float}
_WORDS = ("name", "row_order", "pooling", "optimizer", "precision")
#: Columns that are of a Zipf law, by the names of its fields.
_OF_ZIPF = {"zipf_s": "s", "zipf_q": "q", "row_order": "row_order"}


def pool_names() -> list[str]:
    """Names that `load_pool` takes, apart from paths."""
    return [*SYNTHETIC_BATCH, *model_names()]


def load_pool(name_or_path: str | Path) -> TablePool:
    """Load a pool.

    Args:
        name_or_path: a name from `pool_names()`, or the path of a file: `.json` or `.csv` with your own tables, or
            `.pt` or `.pt.gz` from dlrm_datasets. `pool_of_stream` and `shardgym import-tables` make pools of other
            files of ids.

    Raises:
        UnknownNameError: neither a known name nor a path; the message offers the closest names.
        InputError: the file cannot be read or holds something else.
    """
    text = str(name_or_path)
    if holds_ids(text):
        return pool_of_stream(open_stream(text))
    if text.endswith((".json", ".csv")):
        return load_user_tables(text)
    if text in SYNTHETIC_BATCH:
        return TablePool(text, SYNTHETIC_BATCH[text], synthetic_tables(text))
    if text in model_names():
        return load_model(text).pool
    endings = f"files of tables end in .json or .csv, files of ids in {', '.join(ENDINGS)}"
    if Path(text).suffix or Path(text).exists():
        raise InputError(f"cannot read tables from '{text}': {endings}; 'shardgym list pools' lists the pools")
    raise UnknownNameError("pool", text, pool_names(), f"; {endings}")


@functools.cache
def synthetic_tables(pool: str = SYNTHETIC) -> tuple[EmbeddingTable, ...]:
    """Return the tables of a synthetic pool, in an order that carries no information."""
    with (_DATA / f"{pool}.csv").open(encoding="utf-8") as lines:
        return tuple(
            EmbeddingTable(
                name=row["name"],
                num_embeddings=int(row["num_embeddings"]),
                embedding_dim=PLACEHOLDER_DIM,
                pooling_factor=float(row["pooling_factor"]),
                ids=ZipfIds(s=float(row["s"]), q=float(row["q"]), lengths="poisson"),
                reuse_histogram=tuple(float(row[column]) for column in BIN_COLUMNS),
            )
            for row in csv.DictReader(lines)
        )


@dataclass(frozen=True, config=CONFIG)
class PublishedModel(Record):
    """A model that somebody published."""

    pool: TablePool  #: its tables and its batch size (global)
    #: Where table sizes, batch size and id distribution are from, and what is not stated there.
    source: Annotated[str, Field(min_length=1)]
    precision: Precision = "fp32"  #: of weights
    optimizer: Optimizer = "exact_sgd"  #: that it was published with


def model_names() -> list[str]:
    """Names of the published models, in the order of the data file."""
    return list(_entries())


@functools.cache
def load_model(name: str) -> PublishedModel:
    """Return a published model; raises `UnknownNameError` with the closest names."""
    entries = _entries()
    if name not in entries:
        raise UnknownNameError("published model", name, entries)
    entry = dict(entries[name])
    zipf = entry.pop("zipf", None)
    ids = UniformIds() if zipf is None else ZipfIds(**zipf)  # bags have a fixed size, as in the sources
    # The file groups equal tables: how many, rows, columns, ids per sample.
    shapes = [(rows, dim, pooling) for count, rows, dim, pooling in entry.pop("tables") for _ in range(count)]
    digits = len(str(len(shapes) - 1))
    tables = [
        EmbeddingTable(f"t{i:0{digits}d}", rows, dim, pooling, ids) for i, (rows, dim, pooling) in enumerate(shapes)
    ]
    pool = TablePool(name, entry.pop("batch_size"), tuple(tables))
    return PublishedModel.from_dict({"pool": pool, **entry}, f"published.yaml: {name}")


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    data: dict[str, dict[str, Any]] = yaml.safe_load((_DATA / "published.yaml").read_text(encoding="utf-8"))
    return data


def load_user_tables(path: str | Path) -> TablePool:
    """Load tables from a `.json` or `.csv` file.

    JSON: a list of table objects, or `{"tables": [...], "name": ..., "batch_size": ...}`, the form in which a pool
    writes itself. CSV: a header line with name, num_embeddings, embedding_dim and, if known, pooling_factor, zipf_s,
    zipf_q, row_order, pooling, optimizer and precision; a table without zipf_s has uniform ids.

    Args:
        path: the file; without a batch size in it, tables are for batches of `DEFAULT_BATCH_SIZE`.

    Raises:
        InputError: one line with file, line or table, field and what was expected.
    """
    text = read_text(path)
    pool: dict[str, Any] = {"name": Path(path).stem, "batch_size": DEFAULT_BATCH_SIZE}
    if Path(path).suffix.lower() == ".csv":
        return TablePool.from_dict({**pool, "tables": _csv_tables(path, text)}, str(path))
    data = parse_json(text, str(path))
    data = {"tables": data} if isinstance(data, list) else data
    if not isinstance(data, dict):
        raise InputError(f'{path}: expected a list of tables or an object {{"tables": [...]}}')
    return TablePool.from_dict(pool | data, str(path))


def _csv_tables(path: str | Path, text: str) -> tuple[EmbeddingTable, ...]:
    """Make a table of each line below the header; empty cells stand for defaults."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    tables = []
    try:
        header = reader.fieldnames or ()
        unknown = [column for column in header if column not in (*_NUMBERS, *_WORDS)]
        if unknown:
            raise InputError(f"{path}: unknown column '{unknown[0]:.60}', expected {', '.join((*_WORDS, *_NUMBERS))}")
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{place}: expected {len(header)} cells ({', '.join(header)})")
            tables.append(EmbeddingTable.from_dict(_fields(place, row), place))
    except csv.Error as error:
        raise InputError(f"{path}: not valid CSV ({error})") from None
    if not tables:
        raise InputError(f"{path}: expected a table on each line below the header, got none")
    return tuple(tables)


def _fields(place: str, row: dict[str, str]) -> dict[str, Any]:
    """Return the fields of a table, numbers as such."""
    fields: dict[str, Any] = {column: cell.strip() for column, cell in row.items() if cell.strip()}
    for column, number in _NUMBERS.items():
        try:
            if column in fields:
                fields[column] = number(fields[column])
        except ValueError:
            kind = "a whole number" if number is int else "a number"
            raise InputError(f"{place}, {column}: expected {kind}, got '{fields[column]:.40}'") from None
    zipf = {field: fields.pop(column) for column, field in _OF_ZIPF.items() if column in fields}
    return fields | ({"ids": {"kind": "zipf", **zipf}} if zipf else {})
