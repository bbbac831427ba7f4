"""SSDs: what data sheets say of them, and how long rows of a table take that FBGEMM keeps there.

FBGEMM's operator for SSDs (fbgemm_gpu/tbe/ssd/training.py and ssd_table_batched_embeddings.h, read at commit 71d6f8b)
has a cache of rows in the memory of the device. Before the forward pass, distinct rows of the batch that are not in the
cache are looked up in RocksDB: by direct reads, without a cache of blocks, in blocks of 4 KiB, RocksDB's default. They
then cross the bus. Rows that leave the cache for them are written to RocksDB, whether they changed or not: into a
buffer that goes to the drive in one piece. So a missed row is

- a random read of whole blocks, as long as the drive's rate of such reads or its bandwidth allows, and
- a write of its bytes at the bandwidth of sequential writes, as in training the cache is full.

They add up, and the first read waits for its latency. Not counted is what makes a step longer: what RocksDB computes,
blocks that lie across two of the drive's, rows in several files, and the compaction that writes rows again. Nor is what
makes it shorter: missed rows in one block or still in the buffer, writes while the device computes, and a pipeline that
reads the rows of the next batch meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Floats

#: Bytes that a random read of data sheets reads, and RocksDB's default size of a block (include/rocksdb/table.h).
BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Drive:
    """An SSD.

    Attributes:
        reads: random ones of a block per second, with as many as it likes at once.
        read_bandwidth: bytes per second that are read in sequence.
        write_bandwidth: bytes per second that are written in sequence.
        latency_ms: of a random read alone.
        source: of these figures.
    """

    reads: float
    read_bandwidth: float
    write_bandwidth: float
    latency_ms: float
    source: str

    def row_ms(self, row_bytes: Floats) -> Floats:
        """Return what a missed row takes, read and one in its place written, of rows with so many bytes, (n,)."""
        read_bytes = np.ceil(row_bytes / BLOCK_BYTES) * BLOCK_BYTES
        read_s = np.maximum(1 / self.reads, read_bytes / self.read_bandwidth)
        return np.asarray((read_s + row_bytes / self.write_bandwidth) * 1e3, dtype=np.float64)


DRIVES: dict[str, Drive] = {
    "micron-9200": Drive(
        840e3, 3.5e9, 3.5e9, 0.150,
        "Micron data sheet '9200 NVMe SSDs': steady state of the fastest models, and the larger of 92 to 150 "
        "microseconds for a read",
    ),
    "intel-p4500-4tb": Drive(
        645e3, 3.2e9, 1.8e9, 0.115,
        "Lenovo product guide of Intel P4500 drives, table 'Technical specifications', the drive of 4.0 TB",
    ),
}  # fmt: skip
