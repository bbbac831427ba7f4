"""Table pools: synthetic, recorded (dlrm_datasets), published models, and your own files."""

from __future__ import annotations

from pathlib import Path

from shardgym.arguments import check_name
from shardgym.errors import InputError, UnknownNameError
from shardgym.pools.pool import DEFAULT_BATCH_SIZE, TablePool

__all__ = ["DEFAULT_BATCH_SIZE", "TablePool", "load_pool", "pool_names"]

#: 856 synthetic tables with the aggregate statistics of the dlrm_datasets 2021 file.
SYNTHETIC = "synthetic-2021"

_RECORDED = (".pt", ".pt.gz")
_OWN = (".json", ".csv")


def pool_names() -> list[str]:
    """Names that `load_pool` knows besides paths."""
    from shardgym.pools.published import model_names

    return [SYNTHETIC, *model_names()]


def load_pool(name_or_path: str | Path) -> TablePool:
    """Load a pool.

    Args:
        name_or_path: a name from `pool_names()`, or the path of a file: `.json` or `.csv` with your own tables,
            `.pt` or `.pt.gz` from dlrm_datasets.

    Raises:
        UnknownNameError: neither a known name nor a path; the closest names are given.
        InputError: the file cannot be read or holds something else; or no name or path is given.
    """
    text = check_name("pool", name_or_path)
    if text.endswith(_RECORDED):
        from shardgym.pools.dlrm_datasets import load_dlrm_dataset

        return load_dlrm_dataset(text)
    if text.endswith(_OWN):
        from shardgym.pools.user_tables import load_user_tables

        return load_user_tables(text)
    return _by_name(text)


def _by_name(name: str) -> TablePool:
    if name == SYNTHETIC:
        from shardgym.pools.synthetic import synthetic_tables

        return TablePool(SYNTHETIC, DEFAULT_BATCH_SIZE, tuple(synthetic_tables()))
    if Path(name).exists():
        raise InputError(f"pool file '{name}': expected a name ending in {', '.join((*_OWN, *_RECORDED))}")
    from shardgym.pools.published import load_model, model_names

    if name not in model_names():
        raise UnknownNameError("pool", name, pool_names())
    return load_model(name).pool
