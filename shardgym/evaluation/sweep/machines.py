"""Machines by the name of a GPU and the number of devices, and tasks on them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

from shardgym.costs.gpu.cards import card
from shardgym.costs.gpu.exchange import LINKS
from shardgym.errors import InputError
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import MAX_DEVICES, Topology

#: Of a card's memory, what embeddings may take where nothing else is said, about as in `tasks.topology.PRESETS`.
MEMORY_SHARE = 0.75


class Machine(NamedTuple):
    """A number of one GPU.

    Attributes:
        gpu: a key of `shardgym.costs.gpu.cards.CARDS`.
        devices: how many of it.
    """

    gpu: str
    devices: int

    @property
    def name(self) -> str:
        """What files are called, e.g. "h100-16"."""
        return f"{self.gpu}-{self.devices}"


def topology_of(machine: Machine, memory_bytes: int) -> Topology:
    """Return the devices and links of a machine by its card's data sheet.

    Where there are more devices than share fast links, they fill as few domains as hold the same number of them: 128
    GPUs in racks of 72 are two racks of 64.

    Args:
        machine: GPU and number.
        memory_bytes: of each device.

    Raises:
        UnknownNameError: no such GPU.
        InputError: no device, or more than `shardgym.tasks.topology.MAX_DEVICES`.
    """
    found = card(machine.gpu)
    devices = machine.devices
    if not 1 <= devices <= MAX_DEVICES:
        raise InputError(f"devices: expected 1 to {MAX_DEVICES}, got {devices}")
    fewest = -(-devices // found.domain_size)
    domains = next(number for number in itertools.count(fewest) if devices % number == 0)
    return Topology(
        num_devices=devices,
        memory_bytes=(memory_bytes,) * devices,
        device=machine.gpu,
        interconnect=f"links of {machine.gpu}",
        fast_domain_size=devices // domains,
        intra_bandwidth=found.nvlink,
        inter_bandwidth=found.nic,
        intra_latency_ms=LINKS.fast_floor_us * 1e-3,
        inter_latency_ms=LINKS.slow_floor_us * 1e-3,
    )


def task_on(
    model: ShardingTask, machine: Machine, *, batch_per_device: int | None = None, memory_bytes: int | None = None
) -> ShardingTask:
    """Return a task with the tables of a model, and what its steps are, on a machine.

    All rows are in the memory of its devices.

    Args:
        model: a task on any devices.
        machine: GPU and number.
        batch_per_device: samples of a step for each device; by default the model's batch is shared by all.
        memory_bytes: of each device. By default the card's, where the task counts all that a step takes, else
            `MEMORY_SHARE` of it.

    Raises:
        UnknownNameError: no such GPU.
        InputError: the number of devices, or the batch, is out of range; the task reserves other bytes on each of its
            devices.
    """
    step = model.step_memory
    if step is not None:
        reserved = set(step.reserved_bytes)
        if len(reserved) > 1:
            raise InputError(
                f"the model reserves {min(reserved)} to {max(reserved)} bytes on its devices: expected the same on "
                "all, which then is that on every machine"
            )
        step = dataclasses.replace(step, reserved_bytes=(reserved.pop(),))
    if memory_bytes is None:
        share = MEMORY_SHARE if step is None else 1.0
        memory_bytes = int(card(machine.gpu).memory_bytes * share)
    return dataclasses.replace(
        model,
        topology=topology_of(machine, memory_bytes),
        batch_size=model.batch_size if batch_per_device is None else batch_per_device * machine.devices,
        step_memory=step,
        name=machine.name,
    )
