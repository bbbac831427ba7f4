"""Table pools: synthetic, recorded (dlrm_datasets), published models, and your own files."""

from __future__ import annotations

from pathlib import Path

from shardgym.arguments import check_name
from shardgym.errors import InputError, UnknownNameError
from shardgym.pools.dlrm_datasets import load_dlrm_dataset
from shardgym.pools.published import load_model, model_names
from shardgym.pools.synthetic import synthetic_tables
from shardgym.pools.user_tables import load_user_tables
from shardgym.table import DEFAULT_BATCH_SIZE, TablePool

__all__ = ["DEFAULT_BATCH_SIZE", "SYNTHETIC", "TablePool", "load_pool", "pool_names"]

#: 856 synthetic tables with the aggregate statistics of the dlrm_datasets 2021 file.
SYNTHETIC = "synthetic-2021"


def pool_names() -> list[str]:
    """Names that `load_pool` knows besides paths."""
    return [SYNTHETIC, *model_names()]


def load_pool(name_or_path: str | Path) -> TablePool:
    """Load a pool.

    Args:
        name_or_path: a name from `pool_names()`, or the path of a file: `.json` or `.csv` with your own tables,
            `.pt` or `.pt.gz` from dlrm_datasets.

    Raises:
        UnknownNameError: neither a known name nor a path; the closest names are in the message.
        InputError: the file cannot be read or holds something else; or the argument is no name or path.
    """
    text = check_name("pool", name_or_path)
    if text.endswith((".pt", ".pt.gz")):
        return load_dlrm_dataset(text)
    if text.endswith((".json", ".csv")):
        return load_user_tables(text)
    if text == SYNTHETIC:
        return TablePool(SYNTHETIC, DEFAULT_BATCH_SIZE, synthetic_tables())
    if text in model_names():
        return load_model(text).pool
    if Path(text).exists():
        raise InputError(f"pool file '{text}': expected a name ending in .json, .csv, .pt, .pt.gz")
    raise UnknownNameError("pool", text, pool_names())
