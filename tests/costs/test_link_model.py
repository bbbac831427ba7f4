"""The fitted link model over many placements, against the same model for one exchange at a time."""

import numpy as np
import pytest

from shardgym.costs.link_model import LinkModel, model_fitted_on, shipped_model
from shardgym.costs.links import exchange_times, samples_per_device, transfer_ms
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.topology import Topology

LINKS = LinkModel(0.3, 0.2, 1.1, 0.4, "toy", 0.0, 1)


def task(devices, batch_size=1000, **links):
    topology = Topology(num_devices=devices, memory_bytes=2**30, intra_bandwidth=4e7, inter_bandwidth=1e7, **links)
    return ShardingTask((EmbeddingTable("a", 100, 8),), topology, batch_size)


@pytest.mark.parametrize("domain", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1000, 3])  # 3 samples leave one of four devices without any
def test_placements_take_what_their_single_exchanges_take(domain, batch_size):
    problem = task(4, batch_size, fast_domain_size=domain, intra_latency_ms=0.5, inter_latency_ms=2.0)
    rng = np.random.default_rng(domain)
    widths = 4 * rng.integers(0, 4, (20, 4))
    widths[0] = 0
    compute_ms = rng.uniform(0, 3, (20, 4))
    found = LINKS.exchange_times(problem, compute_ms, widths)
    for plan in range(20):
        sent = np.outer(widths[plan], samples_per_device(batch_size, 4)) * 4
        backward = LINKS.exit_ms(problem.topology, np.zeros(4), sent.T)
        ready = backward + compute_ms[plan]
        np.testing.assert_allclose(found.backward_ms[plan], backward, rtol=1e-12)
        np.testing.assert_allclose(
            found.forward_ms[plan], LINKS.exit_ms(problem.topology, ready, sent) - ready, rtol=1e-9
        )
        np.testing.assert_allclose(found.offsets_ms[plan], ready - ready.min(), atol=1e-12)


def test_without_overheads_and_with_equal_widths_it_is_the_plain_model():
    problem, widths = task(4), np.full((1, 4), 16)
    plain = exchange_times(problem, np.zeros((1, 4)), widths)
    ours = LinkModel(0.0, 0.0, 1.0, 0.0, "toy", 0.0, 1).exchange_times(problem, np.zeros((1, 4)), widths)
    np.testing.assert_allclose(ours.backward_ms, plain.backward_ms, rtol=1e-12)
    np.testing.assert_allclose(ours.forward_ms, plain.forward_ms, rtol=1e-12)
    assert plain.backward_ms[0] == pytest.approx(transfer_ms(problem.topology, widths[0], 1000, 4))


def test_the_shipped_model_is_of_its_own_hardware_only():
    assert model_fitted_on(shipped_model().hardware) == shipped_model()
    assert model_fitted_on("somewhere-else") is None


def test_one_device_exchanges_nothing():
    found = LINKS.exchange_times(task(1), np.ones((3, 1)), np.full((3, 1), 8))
    assert not any(times.any() for times in found)
