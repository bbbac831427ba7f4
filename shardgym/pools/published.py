"""Published models as pools: their tables, batch size, precision and optimiser, with where each was published."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.errors import UnknownNameError
from shardgym.records import CONFIG, Record
from shardgym.table import EmbeddingTable, TablePool, UniformIds, ZipfIds
from shardgym.task import Optimizer, Precision

DATA = Path(__file__).with_name("data") / "published.yaml"


@dataclass(frozen=True, config=CONFIG)
class PublishedModel(Record):
    """A model that somebody published.

    Attributes:
        pool: its tables and its batch size (global).
        source: where table sizes, batch size and id distribution are from, and what is not stated there.
        precision: of weights.
        optimizer: that it was published with.
    """

    pool: TablePool
    source: Annotated[str, Field(min_length=1)]
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"


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
    return PublishedModel.from_dict({"pool": pool, **entry}, f"{DATA.name}: {name}")


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    data: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return data
