"""A task small enough to work out by hand, shared by all tests."""

from __future__ import annotations

import pytest

from shardgym import EmbeddingTable, ShardingTask, Topology


@pytest.fixture
def toy_task() -> ShardingTask:
    """Three tables of 10 x 8, 20 x 4 and 5 x 16 FP32 weights (320 bytes each) on two devices of 700 bytes."""
    return ShardingTask(
        tables=(
            EmbeddingTable("wide", 5, 16, pooling_factor=2.0),
            EmbeddingTable("square", 10, 8, pooling_factor=4.0),
            EmbeddingTable("tall", 20, 4, pooling_factor=1.0),
        ),
        topology=Topology(num_devices=2, memory_bytes=700),
        batch_size=4,
        name="toy",
    )
