"""Compiled exchanges over fitted links against those in NumPy."""

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingTask, Topology
from shardgym.costs.link_model import LinkModel
from shardgym.ties import quantized


@pytest.mark.parametrize(("devices", "domain", "batch_size"), [(1, 1, 64), (4, 4, 1000), (4, 2, 1000), (4, 1, 3)])
def test_compiled_placements_cost_what_those_in_numpy_do(devices, domain, batch_size):
    from neuroshard.compiled_prices import link_arrays_of, slowest_ms_over_links

    topology = Topology(
        num_devices=devices, memory_bytes=2**20, fast_domain_size=domain, intra_bandwidth=4e7, inter_bandwidth=1e7,
        intra_latency_ms=0.5, inter_latency_ms=2.0,
    )  # fmt: skip
    task = ShardingTask((EmbeddingTable("a", 100, 8),), topology, batch_size)
    links = LinkModel(0.3, 0.2, 1.1, 40.0, "toy", 0.0, 1)
    rng = np.random.default_rng(devices + domain)
    widths = 4.0 * rng.integers(0, 4, (30, devices))
    compute = quantized(rng.uniform(0, 3, (30, devices)))
    exchange = links.exchange_times(task, compute, widths)
    expected = quantized((compute + exchange.forward_ms + exchange.backward_ms).max(axis=1))
    assert slowest_ms_over_links(link_arrays_of(links, task), compute, widths).tolist() == expected.tolist()
