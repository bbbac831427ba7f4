"""Row collectives of the GPU model: formulas worked out by hand, and what must hold whatever the constants."""

import dataclasses

import numpy as np
import pytest

from shardgym import InputError, Topology
from shardgym.costs.gpu.collectives import CollectiveConstants, all_reduce_ms, reduce_scatter_ms
from shardgym.costs.links import peers_of

#: Round numbers.
ROUND = CollectiveConstants(
    ring_share=0.8, switch_share=1.0, card_share=0.9, node_fall=0.1, device_us=2.0, node_us=3.0, ramp=3.0,
    ramp_bytes=65536.0, reduce_us=20.0, reduce_node_us=10.0, reduce_ramp=4.0, reduce_ramp_bytes=8e6,
)  # fmt: skip
#: Bytes so many that start-up times count for nothing.
LARGE = 1e12


def gpus(name, count, domain=8):
    links = {"a100": (300e9, 25e9), "h100": (450e9, 50e9)}[name]
    return Topology(
        num_devices=count, memory_bytes=1, fast_domain_size=domain, intra_bandwidth=links[0], inter_bandwidth=links[1]
    )


def busbw(topology, ms, factor):
    """Return the bus bandwidth of `LARGE` bytes as nccl-tests counts it, in 10**9 bytes per second."""
    return factor * (topology.num_devices - 1) / topology.num_devices * LARGE / ms * 1e-6


def test_a_reduce_scatter_in_one_node_by_hand():
    # A part is 65,536 bytes, so half of the ramp is paid: 8 x 2 us x (1 + 3 / 2) = 40 us. Then 7 / 8 of 524,288 bytes
    # at 0.8 x 450 GB/s: 1.2743 us.
    found = reduce_scatter_ms(gpus("h100", 8), np.array([0.0, 524288.0]), ROUND)
    assert found == pytest.approx([0.016, 0.0412743], rel=1e-4)
    assert reduce_scatter_ms(gpus("h100", 1, domain=1), np.array([LARGE]), ROUND) == 0


def test_a_reduce_scatter_between_nodes_is_bound_by_the_slower_of_nvlink_and_all_cards_of_a_node():
    # Two nodes: 8 cards x 50 x 0.9 / 1.1 = 327.3 GB/s, below 0.8 x 450 = 360. One GPU a node: one card.
    two = gpus("h100", 16)
    assert reduce_scatter_ms(two, np.array(0.0), ROUND) == pytest.approx((16 * 2 + 2 * 3) * 1e-3)
    assert busbw(two, reduce_scatter_ms(two, np.array(LARGE), ROUND), 1) == pytest.approx(327.27, rel=1e-3)
    single = gpus("h100", 2, domain=1)
    assert busbw(single, reduce_scatter_ms(single, np.array(LARGE), ROUND), 1) == pytest.approx(40.909, rel=1e-3)
    # With cards twice as fast NVLink is the slower one.
    fast = dataclasses.replace(two, inter_bandwidth=100e9)
    assert busbw(fast, reduce_scatter_ms(fast, np.array(LARGE), ROUND), 1) == pytest.approx(360.0, rel=1e-3)
    # The last of three nodes has two GPUs, and so two cards: 2 x 50 x 0.9 / (1 + 0.1 x log2(3)).
    uneven = gpus("h100", 18)
    assert busbw(uneven, reduce_scatter_ms(uneven, np.array(LARGE), ROUND), 1) == pytest.approx(77.69, rel=1e-3)


def test_an_all_reduce_by_hand():
    # H100: switches add up. In one node 2 x 7 / 8 of the bytes at 450 GB/s; 20 us x (1 + 4 / 2) at 8e6 bytes.
    found = all_reduce_ms(gpus("h100", 8), np.array([0.0, 8e6]), ROUND)
    assert found == pytest.approx([0.020, 0.060 + 2 * 7 / 8 * 8e6 / 450e9 * 1e3], rel=1e-6)
    assert all_reduce_ms(gpus("h100", 1, domain=1), np.array([LARGE]), ROUND) == 0
    # Four nodes: each sends and gets 2 x 3 / 4 of the bytes over 8 cards x 50 x 0.9 / 1.2 = 300 GB/s; 20 + 2 x 10 us.
    four = gpus("h100", 32)
    assert all_reduce_ms(four, np.array([0.0, LARGE]), ROUND) == pytest.approx([0.040, 5000.2], rel=1e-5)
    # Two nodes: 2 / 2 of the bytes at 327.3 GB/s are done before NVLink's 2 x 15 / 16 at 450.
    two = gpus("h100", 16)
    assert busbw(two, all_reduce_ms(two, np.array(LARGE), ROUND), 2) == pytest.approx(450.0, rel=1e-3)
    # A100: a ring of twice the bytes.
    ring = gpus("a100", 8)
    assert busbw(ring, all_reduce_ms(ring, np.array(LARGE), ROUND), 2) == pytest.approx(240.0, rel=1e-3)
    ring = gpus("a100", 16)
    assert busbw(ring, all_reduce_ms(ring, np.array(LARGE), ROUND), 2) == pytest.approx(163.64, rel=1e-3)


def test_peers_have_the_links_of_their_own_place():
    topology = gpus("h100", 32)
    # Groups of one node, of two: a peer in each, over its own card.
    for group, peers in ((8, 4), (16, 2)):
        found = peers_of(topology, group)
        assert (found.num_devices, found.fast_domain_size) == (peers, 1)
    assert busbw(peers_of(topology, 16), all_reduce_ms(peers_of(topology, 16), np.array(LARGE), ROUND), 2) == (
        pytest.approx(40.909, rel=1e-3)
    )
    # Groups of half a node: two peers in each node, with two cards.
    found = peers_of(topology, 4)
    assert (found.num_devices, found.fast_domain_size) == (8, 2)
    # Groups inside of one node, and one group of all.
    found = peers_of(gpus("h100", 8), 2)
    assert (found.num_devices, found.fast_domain_size) == (4, 4)
    assert peers_of(topology, 32).num_devices == 1


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (5, "group_size: expected a divisor of 24 devices, got 5"),
        (0, "group_size: expected a divisor of 24 devices, got 0"),
        (12, "group_size: expected whole nodes of 8 devices or equal parts of one, got 12"),
    ],
)
def test_groups_that_cut_nodes_are_refused(group, said):
    with pytest.raises(InputError, match=said):
        peers_of(gpus("h100", 24), group)
