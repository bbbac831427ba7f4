"""Whether the columns of a file of samples are what they should be."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardgym.costs.simulator.layout import BOUNDS, ROLES, Kind, arrow_schema
from shardgym.errors import InputError
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE

_CHOICES = {"role": ROLES, "precision": tuple(ELEMENT_BYTES), "optimizer": tuple(OPTIMIZER_STATE)}

#: Lists of a row that must be equally long, and the column that says how long, if any.
_PARALLEL: dict[Kind, tuple[str, ...]] = {
    "compute": ("num_embeddings", "embedding_dim", "pooling_factor", "reuse_histogram", "table_name"),
    "comm": ("widths", "start_offsets_ms", "forward_ms", "backward_ms"),
}


def check_columns(table: Any, kind: Kind, source: str) -> Any:
    """Check types, ranges and lengths of all columns.

    Args:
        table: a `pyarrow.Table`.
        kind: what it should hold.
        source: the file, for messages.

    Returns:
        The table with exactly the columns of the kind, in order.

    Raises:
        InputError: the first thing that is wrong, with file, field and row.
    """
    schema = arrow_schema(kind)
    for field in schema:
        if field.name not in table.column_names:
            raise InputError(f"{source}: column '{field.name}' is missing")
        given = table.schema.field(field.name).type
        if given != field.type:
            raise InputError(f"{source}: column '{field.name}' has type {given}, expected {field.type}")
    table = table.select(schema.names)
    if table.num_rows == 0:
        raise InputError(f"{source}: no rows")
    for name in schema.names:
        _check_values(table.column(name).combine_chunks(), name, source)
    _check_lengths(table, kind, source)
    return table


def _check_values(column: Any, name: str, source: str) -> None:
    owners = np.arange(len(column))
    while True:
        if column.null_count:
            raise InputError(f"{source}: column '{name}', row {_first(column.is_null(), owners)}: no value")
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            break
        lengths = _lengths(column)
        column, owners = column.flatten(), np.repeat(owners, lengths)
    if name in BOUNDS:
        values, bounds = column.to_numpy(zero_copy_only=False), BOUNDS[name]
        bad = ~((values >= bounds.low) & (values <= bounds.high))
        expected = f"a number from {bounds.low:g} to {bounds.high:g}"
    elif name in _CHOICES:
        values = np.array(column.to_pylist(), dtype=object)
        bad = ~np.isin(values.astype(str), _CHOICES[name])
        expected = f"one of {', '.join(_CHOICES[name])}"
    else:
        return
    if bad.any():
        row = int(owners[bad.argmax()])
        raise InputError(f"{source}: column '{name}', row {row}: {values[bad.argmax()]!s:.40}, expected {expected}")


def _first(mask: Any, owners: Any) -> int:
    return int(owners[np.argmax(np.asarray(mask.to_pylist(), dtype=bool))])


def _lengths(column: Any) -> Any:
    """Lengths of the lists of a column, fixed-size lists included."""
    size = getattr(column.type, "list_size", None)
    return np.full(len(column), size) if size is not None else column.value_lengths().to_numpy(zero_copy_only=False)


def _check_lengths(table: Any, kind: Kind, source: str) -> None:
    first, *others = _PARALLEL[kind]
    expected = _lengths(table.column(first).combine_chunks())
    if kind == "comm":
        others, expected = [first, *others], table.column("num_devices").to_numpy()
    for name in others:
        given = _lengths(table.column(name).combine_chunks())
        if (given != expected).any():
            row = int((given != expected).argmax())
            raise InputError(f"{source}: column '{name}', row {row}: {given[row]} entries, expected {expected[row]}")
    if (expected == 0).any():
        raise InputError(f"{source}: column '{first}', row {int((expected == 0).argmax())}: a sample without shards")
