"""A modelled GPU in place of a measured one: the cost `gpu` answers what workers and ranks would have measured.

A simulator that is trained on such samples is to the model what one of a machine is to the machine: an oracle for
solvers, while the model itself judges. Without noise a sample says what the model says. With noise, every step is that
times a log-normal factor, drawn anew for each measurement; its standard deviation is `noise`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.communication import AllToAll
from shardgym.costs.fbgemm.jobs import ShardSet, StepTimes, TimingJob
from shardgym.costs.gpu.cards import CARDS, card
from shardgym.costs.gpu.cost import shard_sizes
from shardgym.costs.gpu.exchange import exchange_ms, exchange_topology
from shardgym.costs.gpu.kernels import backward_ms, forward_ms, shard_work
from shardgym.costs.links import wait_ms
from shardgym.task import ELEMENT_BYTES
from shardgym.topology import Topology

_PREFIX = "modelled:"
#: Devices of `shardgym collect` that are modelled.
MODELLED_DEVICES = tuple(f"{_PREFIX}{name}" for name in CARDS)


def is_modelled(device: str) -> bool:
    """Say whether a device of `shardgym collect` is modelled."""
    return device in MODELLED_DEVICES


class ModelledGpu:
    """Takes the place of a `WorkerPool`, and of the `CollectiveGroup` of any number of devices.

    Args:
        device: one of `MODELLED_DEVICES`.
        noise: standard deviation of the logarithm of a step's time.
        seed: of the noise.
    """

    def __init__(self, device: str, noise: float, seed: int) -> None:
        self._name = device.removeprefix(_PREFIX)
        self._card = card(self._name)
        self._noise = noise
        self._seed = seed
        self._measured: Counter[ShardSet | AllToAll] = Counter()

    def facts(self) -> dict[str, str]:
        """Return the hardware tag, as the cost `gpu` has it."""
        return {"hardware": f"{self._name}-modelled"}

    def run(self, jobs: Iterator[TimingJob], ahead: int = 0) -> Generator[tuple[TimingJob, StepTimes]]:  # noqa: ARG002
        """Yield every job with its answer."""
        for job in jobs:
            times = np.tile(shard_set_ms(self._name, job.shard_set), (job.iterations, 1))
            yield job, StepTimes(self._with_noise(times, job.shard_set))

    def time(self, exchange: AllToAll, warmups: int, iterations: int) -> Floats:  # noqa: ARG002
        """Return times of an exchange in ms, shape (iterations, D)."""
        devices = len(exchange.widths)
        links = exchange_topology(self._card, Topology(num_devices=devices, memory_bytes=(1,) * devices))
        widths = np.array(exchange.widths, dtype=np.float64)
        transfer = exchange_ms(links, widths, exchange.batch_size, ELEMENT_BYTES[exchange.precision])
        times = wait_ms(np.array(exchange.offsets_ms)) + transfer
        return self._with_noise(np.tile(times, (iterations, 1)), exchange)

    def close(self) -> None:
        """Do nothing: no process was started."""

    def _with_noise(self, times: Floats, measured: ShardSet | AllToAll) -> Floats:
        if not self._noise:
            return times
        self._measured[measured] += 1
        content = np.frombuffer(repr(measured).encode(), dtype=np.uint8)
        rng = np.random.default_rng([self._seed, self._measured[measured], *content.tolist()])
        return np.asarray(times * np.exp(self._noise * rng.standard_normal(times.shape)), dtype=np.float64)


def shard_set_ms(hardware: str, shard_set: ShardSet) -> Floats:
    """Return forward and backward of a device of a card that holds a shard set, in ms, shape (2,)."""
    shards = [(shard.table, shard.num_rows, shard.width) for shard in shard_set.shards]
    sizes = shard_sizes(shards, shard_set.batch_size, shard_set.precision, shard_set.optimizer)
    work = shard_work(card(hardware), sizes).sum(axis=0, keepdims=True)
    return np.concatenate([forward_ms(work, np.array([float(len(shards))])), backward_ms(work)])
