"""The link model against sums done by hand."""

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.costs.links import exchange_times, pooled_widths, transfer_ms


def topology(devices, **links):
    values = {"intra_latency_ms": 1.0, "inter_latency_ms": 5.0, "intra_bandwidth": 4e6, "inter_bandwidth": 1e6}
    return Topology(num_devices=devices, memory_bytes=2**30, **{**values, **links})


def task(devices, **links):
    tables = tuple(EmbeddingTable(name, 100, 8) for name in "ab")
    return ShardingTask(tables=tables, topology=topology(devices, **links), batch_size=1000)


@pytest.mark.parametrize(
    ("links", "widths", "element_bytes", "ms"),
    [
        # Each sends 500 samples x 8 columns x 4 bytes = 16,000 bytes: 4 ms at 4e6 bytes/s, plus 1 ms.
        ({}, [8, 8], 4, [5, 5]),
        ({}, [8, 8], 2, [3, 3]),
        # Device 0 sends 500 x 16 x 4 = 32,000 bytes, device 1, which has no shard, receives as many.
        ({}, [16, 0], 4, [9, 9]),
        # 250 samples each. To the other domain: 500 x 8 x 4 = 16,000 bytes at 1e6: 16 + 5 ms. Inside: 250 x 8 x 4 =
        # 8,000 bytes at 4e6: 2 + 1 ms, hidden behind the slower links.
        ({"fast_domain_size": 2}, [8, 8, 8, 8], 4, [21] * 4),
        # Alone in its domain, a device uses only the links between domains.
        ({"fast_domain_size": 1, "intra_latency_ms": 1000.0}, [8, 8], 4, [21, 21]),
    ],
)
def test_an_all_to_all_takes_latency_plus_bytes_over_bandwidth(links, widths, element_bytes, ms):
    made = topology(len(widths), **links)
    assert transfer_ms(made, np.array(widths), 1000, element_bytes) == pytest.approx(ms)


def exchanges(toy, compute_ms, placement, *, ids_hidden):
    """Exchanges of a plan of whole tables, by forward and backward compute of its devices."""
    widths = pooled_widths(toy, ShardingPlan.table_wise(toy, placement))
    transfer = transfer_ms(toy.topology, widths, toy.batch_size, 4)
    return exchange_times(np.array(compute_ms), transfer, ids_hidden=ids_hidden)


@pytest.mark.parametrize("ids_hidden", [True, False])
def test_one_device_does_not_communicate(ids_hidden):
    assert not np.any(exchanges(task(1), [[7.0, 3.0]], [0, 0], ids_hidden=ids_hidden))


@pytest.mark.parametrize(
    ("ids_hidden", "forward_ms", "backward_ms"),
    [
        # Nobody waits for the exchange of gradients, and those with less of it wait in the forward exchange.
        (True, [24.2 + 19.2 + 0.5, 24.2 + 19.2, 43.4], [24.2, 24.2, 43.4]),
        # All leave each exchange with device 2, which enters the forward exchange with 4 ms of compute done.
        (False, [43.4 + 0.5, 43.4, 43.4], [43.4] * 3),
    ],
)
def test_devices_wait_for_the_busiest_link(ids_hidden, forward_ms, backward_ms):
    """In domains {0, 1} and {2}: device 2 exchanges everything over slow links. Device 0 computes 0.5 ms less."""
    three = ShardingTask(
        tables=(EmbeddingTable("a", 100, 8), EmbeddingTable("b", 100, 8)),
        topology=topology(3, fast_domain_size=2),
        batch_size=900,
    )
    found = exchanges(three, [[3.5, 6.0], [4.0, 6.0], [4.0, 6.0]], [2, 2], ids_hidden=ids_hidden)
    # Device 2 sends 600 x 16 x 4 = 38,400 bytes between domains; 0 and 1 receive 300 x 16 x 4 = 19,200 each.
    assert found.backward_ms == pytest.approx(backward_ms)
    assert found.forward_ms == pytest.approx(forward_ms)


def test_row_shards_count_with_their_full_width_on_every_device():
    two = task(2)
    shards = [Shard("a", (0, 50), (0, 8), 0), Shard("a", (50, 100), (0, 8), 1), Shard("b", (0, 100), (0, 4), 0)]
    plan = ShardingPlan.of(two, [*shards, Shard("b", (0, 100), (4, 8), 1)])
    assert pooled_widths(two, plan).tolist() == [12, 12]
