"""Tables with recorded ids from a dlrm_datasets file (`.pt` or `.pt.gz`).

Such a file holds no widths and no table sizes; rows are what the ids reach, as in the papers' preparation scripts.
"""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from shardgym.errors import InputError
from shardgym.ids import ReuseCounts
from shardgym.recorded_ids import bags_digest, read_recording
from shardgym.table import EmbeddingTable, RecordedIds, TablePool

#: Tables whose ids reach fewer rows are taken to have this many.
MIN_ROWS = 100


def load_dlrm_dataset(path: str | Path, embedding_dim: int = 16) -> TablePool:
    """Load a file as a pool.

    Rows are the largest id + 1 but at least 100, the pooling factor is the mean bag size. To measure with the recorded
    ids later, put the file's folder into the environment variable `SHARDGYM_DATA`.

    Args:
        path: a `.pt` or `.pt.gz` file.
        embedding_dim: width of all tables, as the file has none.

    Raises:
        InputError: not such a file, truncated, or its three parts contradict each other.
    """
    recording = read_recording(path)
    count, batch_size = recording.lengths.shape
    tables = []
    for index in tqdm(range(count), desc="reading tables", unit="table", delay=1, leave=False, disable=None):
        indices, lengths = recording.bags(index)
        if indices.size and int(indices.min()) < 0:
            raise InputError(f"{path}: table {index} has a negative id ({int(indices.min())})")
        fields = {
            "name": f"t{index:03d}",
            "num_embeddings": max(MIN_ROWS, int(indices.max(initial=-1)) + 1),
            "embedding_dim": embedding_dim,
            "pooling_factor": indices.size / batch_size,
            "ids": RecordedIds(Path(path).name, index, batch_size, bags_digest(indices, lengths)),
            "reuse_histogram": ReuseCounts.of(indices).row_shares(),
        }
        tables.append(EmbeddingTable.from_dict(fields, f"{path}, table {index}"))
    return TablePool.from_dict({"name": Path(path).name, "batch_size": batch_size, "tables": tuple(tables)}, str(path))
