"""The fitted link model over the steps of many placements, against the same model for one exchange at a time."""

import itertools

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingTask, Topology
from shardgym.costs.fbgemm.step import PARTS, PlanSteps, phases_of
from shardgym.costs.link_model import LinkModel, StepWork
from shardgym.costs.links import (
    COLUMNS,
    DOMAIN_ROW_COLUMNS,
    IDS,
    LOADS,
    REPLICA_BYTES,
    REPLICAS,
    ROW_COLUMNS,
    SHARDS,
    samples_per_device,
)

LINKS = LinkModel(0.3, 0.2, 1.1, "toy", 0.0, 0.0, 1)
ROUND = LinkModel(0.5, 0.25, 1.0, "toy", 0.0, 0.0, 1)


def task(devices, batch_size=1000, **links):
    topology = Topology(num_devices=devices, memory_bytes=2**30, intra_bandwidth=4e7, inter_bandwidth=1e7, **links)
    return ShardingTask((EmbeddingTable("a", 100, 8),), topology, batch_size)


def random_steps(devices, count, seed):
    """Work and loads of some steps; the first one holds nothing, the second one all on one device."""
    rng = np.random.default_rng(seed)
    shards = rng.integers(0, 4, (count, devices))
    shards[0], shards[1, 1:] = 0, 0
    ids, columns = shards * rng.uniform(0, 20, shards.shape), shards * 4 * rng.integers(1, 4, shards.shape)
    work = StepWork(*rng.uniform(0, 3, (len(StepWork._fields), *shards.shape)))
    return work, loads_of(ids, columns, shards)


def loads_of(ids, columns, shards):
    """Loads of devices that hold whole rows alone."""
    loads = np.zeros((*np.shape(ids), LOADS))
    loads[..., IDS], loads[..., COLUMNS], loads[..., SHARDS] = ids, columns, shards
    return loads


def as_measured(problem, work, loads):
    """One step as if it had been measured, devices having sent what their loads say."""
    samples = samples_per_device(problem.batch_size, problem.num_devices)
    ids, columns, shards = loads.T[IDS], loads.T[COLUMNS], loads.T[SHARDS] - loads.T[REPLICAS]
    parts = np.zeros((problem.num_devices, len(PARTS)))
    for part, ms in work._asdict().items():
        parts[:, PARTS.index(part)] = ms
    sent = {}
    if shards.any() or not loads.any():
        sent |= {"lengths_exchange": 8 * np.outer(samples, shards), "values_exchange": 8 * np.outer(samples, ids)}
    if columns.any() or not loads.any():
        sent["output_exchange"] = 4 * np.outer(columns, samples)
        sent["gradient_exchange"] = sent["output_exchange"].T
    if loads.T[ROW_COLUMNS].any():
        width = np.full(len(samples), loads.T[ROW_COLUMNS].sum())
        sent["sum_exchange"] = 4 * np.outer(width, samples)
        sent["sum_gradient_exchange"] = sent["sum_exchange"].T
    if loads.T[DOMAIN_ROW_COLUMNS].any():
        sent |= sent_in_domains(problem, loads.T[DOMAIN_ROW_COLUMNS], samples)
    if loads.T[REPLICA_BYTES].any():
        sent["replica_exchange"] = np.full((len(samples),) * 2, loads.T[REPLICA_BYTES][0] / len(samples))
    assert set(sent) <= set(PARTS)
    return PlanSteps(parts[None, None], {part: matrix[None, None] for part, matrix in sent.items()})


def sent_in_domains(problem, columns, samples):
    """What devices send of tables that domains hold by rows: to each of the domain, what is for all at its place."""
    size = problem.topology.fast_domain_size
    inside, between = np.zeros((2, len(samples), len(samples)))
    for sender in range(len(samples)):
        first = sender // size * size
        width = columns[first : first + size].sum()
        for place in range(size):
            if first + place != sender:
                inside[sender, first + place] = width * samples[place::size].sum()
        for other in range(sender % size, len(samples), size):
            between[sender, other] = width * samples[other]
    sent = {"between_exchange": 4 * between, "between_gradient_exchange": 4 * between.T}
    if size > 1:
        sent |= {"domain_sum_exchange": 4 * inside, "domain_gradient_exchange": 4 * inside.T}
    return sent


@pytest.mark.parametrize("devices", [2, 4, 5, 6])
@pytest.mark.parametrize("domain", [1, 2, None])
@pytest.mark.parametrize("batch_size", [1001, 3])  # 3 samples leave some of four devices without any
def test_placements_take_what_their_measured_steps_would(devices, domain, batch_size, monkeypatch):
    """Placements of one kind alone, of several, and of none, all in one call; the last ones of whole tables alone."""
    monkeypatch.setattr("shardgym.costs.fbgemm.step._RESAMPLES", 1)  # of the noise, which plays no part
    domain = domain or devices
    problem = task(devices, batch_size, fast_domain_size=domain, intra_latency_ms=0.5, inter_latency_ms=2.0)
    work, loads = random_steps(devices, 24, devices)
    rng = np.random.default_rng(1)
    for plan, kinds in enumerate(itertools.product([False, True], repeat=4)):
        has_columns, has_rows, has_domains, has_replicas = kinds
        if not has_columns:
            loads[plan, :, IDS:] = 0
        if has_rows:
            loads[plan, :, ROW_COLUMNS] = rng.uniform(0, 9, devices)
        if has_domains and domain < devices and devices % domain == 0:
            loads[plan, :domain, DOMAIN_ROW_COLUMNS] = rng.uniform(0, 9, domain)
        loads[plan, :, SHARDS] += (loads[plan, :, ROW_COLUMNS] > 0) + 1.0 * (loads[plan, :, DOMAIN_ROW_COLUMNS] > 0)
        loads[plan, :, IDS] += 3 * (loads[plan, :, SHARDS] > 0)
        if has_replicas:
            loads[plan, :, SHARDS] += 2
            loads[plan, :, REPLICA_BYTES], loads[plan, :, REPLICAS] = 5e4, 2
    found = LINKS.step_times(problem, work, loads)
    for plan in range(len(loads)):
        own = StepWork(*(ms[plan] for ms in work))
        expected = phases_of(problem, as_measured(problem, own, loads[plan]), LINKS).per_device
        np.testing.assert_allclose(np.stack([times[plan] for times in found], axis=-1), expected[:, [0, 2, 3]], 1e-9)
        alone = LINKS.step_times(problem, own, loads[plan])
        np.testing.assert_allclose(alone, [times[plan] for times in found], rtol=1e-12)


def test_a_step_by_hand():
    """Two devices of one sample each; 1 byte takes 1 ms, nothing else takes time. Device 1 holds nothing."""
    topology = Topology(num_devices=2, memory_bytes=1, intra_bandwidth=1e3, intra_latency_ms=0)
    problem = ShardingTask((EmbeddingTable("a", 100, 8),), topology, 2)
    work = StepWork(*(np.array([ms, 0.0]) for ms in (1, 2, 3, 4, 5, 6, 7)))
    found = LinkModel(0.0, 0.0, 1.0, "toy", 0.0, 0.0, 1).step_times(problem, work, loads_of([3, 0], [4, 0], [1, 0]))
    # Device 0 takes in 8 bytes of lengths, from 1 to 9, and 24 of ids, from 11 to 35. Device 1 leaves with it.
    assert found.ids_ms.tolist() == [1 + 8 + 2 + 24 + 3, 35]
    # Device 0 has computed at 42 and sends 16 bytes of values, for which device 1 waits from 35 on.
    assert found.forward_ms.tolist() == [16 + 5, 58 - 35]
    # It takes in as many of gradients from 69 on, when it has packed its own. Device 1 sends them from 58 on.
    assert found.backward_ms.tolist() == [6 + 16, 85 - 58]


def test_one_device_exchanges_nothing():
    work, loads = random_steps(1, 3, 0)
    found = LINKS.step_times(task(1), work, loads)
    np.testing.assert_array_equal(found.ids_ms, work.pack_ids + work.count_ids + work.group_ids)
    np.testing.assert_array_equal(found.forward_ms, work.join_outputs)
    np.testing.assert_array_equal(found.backward_ms, work.pack_gradients)


def test_the_widest_device_decides_and_domains_have_links_of_their_own():
    together = np.zeros(3)
    sent = np.array([[7000, 1000, 2000], [0, 0, 500], [500, 0, 0]])
    flat = Topology(num_devices=3, memory_bytes=1, intra_bandwidth=1e6, intra_latency_ms=0)
    np.testing.assert_allclose(ROUND.exit_ms(flat, together, sent), 1.0 + 3.0)
    apart = Topology(
        num_devices=3, memory_bytes=1, fast_domain_size=2, intra_bandwidth=1e9, inter_bandwidth=1e5,
        intra_latency_ms=0, inter_latency_ms=2,
    )  # fmt: skip
    # Between domains, device 2 takes in 2,500 bytes at 100 bytes a ms, and both others wait for it.
    np.testing.assert_allclose(ROUND.exit_ms(apart, together, sent), 1 + 2 + 25)
    # In exchanges inside of groups, nobody waits for another group.
    alone = ROUND.exit_ms(flat, together, [[0, 1000, 0], [0, 0, 0], [0, 0, 9000]], np.array([0, 0, 1]))
    np.testing.assert_allclose(alone, [0.75 + 1, 0.75 + 1, 0.75])


def test_all_leave_when_the_last_one_has_come_and_the_busiest_link_is_through():
    flat = Topology(num_devices=2, memory_bytes=1, intra_bandwidth=1e6, intra_latency_ms=0)
    links = LinkModel(0.0, 0.0, 1.0, "toy", 0.0, 0.0, 1)
    for sent in ([[0, 4000], [1000, 0]], [[0, 1000], [4000, 0]]):
        for entry_ms in ([0.0, 10.0], [10.0, 0.0]):
            assert links.exit_ms(flat, np.array(entry_ms), sent).tolist() == [14, 14]
