"""Table pools: synthetic, recorded (dlrm_datasets), published models, and your own files."""

from shardgym.tables.pools.load import SYNTHETIC, load_pool, pool_names
from shardgym.tables.table import DEFAULT_BATCH_SIZE, TablePool

__all__ = ["DEFAULT_BATCH_SIZE", "SYNTHETIC", "TablePool", "load_pool", "pool_names"]
