"""What a model's embeddings would take on other machines: a run whose tasks are one model on GPUs, by name and number.

The solver asks the cost `gpu`, which also judges its plans. Results are the time of a step, the memory left, the
bottleneck, and, if the rest of the model and prices are known, what samples cost.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tabulate import tabulate

from shardgym.costs.gpu.cards import Card, card
from shardgym.costs.gpu.cost import AdditiveGpu, GpuCost, GpuSettings, card_of
from shardgym.costs.gpu.exchange import LINKS
from shardgym.errors import InputError
from shardgym.evaluation.result import Result
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import tables_in_batches
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import GIB, MAX_DEVICES, Topology

#: Default share of a card's memory for embeddings, about as in `tasks.topology.PRESETS`.
MEMORY_SHARE = 0.75


class Machine(NamedTuple):
    """A number of one GPU, a key of `shardgym.costs.gpu.cards.CARDS`."""

    gpu: str
    devices: int


@dataclass(frozen=True)
class Machines:
    """One model on several machines, as the tasks of a run."""

    name: str  #: of the run, e.g. "sweep-mymodel".
    tasks: Mapping[Machine, ShardingTask]  #: by machine, see `task_on`

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> ShardingTask:
        return list(self.tasks.values())[index]


def topology_of(machine: Machine, memory_bytes: int) -> Topology:
    """Return the devices, each with so many bytes of memory, and links of a machine by its card's data sheet.

    Where there are more devices than share fast links, they fill as few domains as hold the same number of them: 128
    GPUs in racks of 72 are two racks of 64.

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
        memory_bytes: memory of each device. By default the card's, where the task counts all that a step takes, else
            `MEMORY_SHARE` of it.

    Raises:
        UnknownNameError: no such GPU.
        InputError: the number of devices, or the batch, is out of range; the task reserves other bytes on each of its
            devices; or see `tables_in_batches`.
    """
    step = model.step_memory
    if step is not None:
        reserved = set(step.reserved_bytes)
        if len(reserved) > 1:
            raise InputError(
                f"the model reserves {min(reserved)} to {max(reserved)} bytes on its devices: expected the same on "
                "all, to reserve it on every machine"
            )
        step = dataclasses.replace(step, reserved_bytes=(reserved.pop(),))
    if memory_bytes is None:
        share = MEMORY_SHARE if step is None else 1.0
        memory_bytes = int(card(machine.gpu).memory_bytes * share)
    batch_size = model.batch_size if batch_per_device is None else batch_per_device * machine.devices
    return dataclasses.replace(
        model,
        tables=tables_in_batches(model.tables, model.batch_size, batch_size),
        topology=topology_of(machine, memory_bytes),
        batch_size=batch_size,
        step_memory=step,
        name=f"{machine.gpu}-{machine.devices}",
    )


def savings(task: ShardingTask, plan: ShardingPlan) -> dict[str, float]:
    """Return what a plan's step saves, in ms, if one part of all devices is twice as fast, by the cost `gpu`.

    The parts are the bandwidth of their memory; lookups, that is the clock of their multiprocessors and with it the L2
    cache; and links, NVLink or what is in its place and network cards.
    """
    topology = task.topology
    base = dataclasses.replace(
        card_of(task),
        nvlink=topology.intra_bandwidth,
        nic=topology.inter_bandwidth,
        domain_size=topology.fast_domain_size,
    )
    now = _total_ms(task, plan, base)
    faster = {
        "memory": dataclasses.replace(base, memory_bandwidth=2 * base.memory_bandwidth),
        "lookups": dataclasses.replace(base, clock_hz=2 * base.clock_hz),
        "links": dataclasses.replace(base, nvlink=2 * base.nvlink, nic=2 * base.nic),
    }
    return {part: max(0.0, now - _total_ms(task, plan, of_part)) for part, of_part in faster.items()}


def _total_ms(task: ShardingTask, plan: ShardingPlan, of: Card) -> float:
    prices = AdditiveGpu(GpuSettings(), of)
    return GpuCost().plan_costs(prices, prices.batch(task, [plan]))[0].total_ms


def bound_by(saved: Mapping[str, float], total_ms: float) -> str:
    """Return which part takes most of a step, by what twice its speed saves.

    What takes all of a step saves half of it. Where all parts together save less than a quarter, start-up times of
    kernels and exchanges take more than half, which no faster device shortens.
    """
    return "start-up" if sum(saved.values()) < total_ms / 4 else max(saved, key=saved.__getitem__)


class DenseTime(NamedTuple):
    """What the rest of the model takes in a step of one device, forward and backward."""

    ms: float
    #: For so many samples of a device, and proportionally for others; None where it is always the same.
    samples: int | None = None


@dataclass(frozen=True)
class Economics:
    """What is known besides embeddings, by GPU; a GPU that is not named has none."""

    #: Time of the rest of the model. A step is embeddings plus this: no overlap is counted.
    dense: Mapping[str, DenseTime] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)  #: of one GPU for an hour, in any currency


def describe_machine(machine: Machine, task: ShardingTask, result: Result, economics: Economics) -> dict[str, Any]:
    """Return what is known of a machine, JSON-ready; None stands for unknown values."""
    found: dict[str, Any] = {
        **machine._asdict(),
        "batch_size": task.batch_size,
        "status": result.status,
        "reason": result.reason,
        "embedding_ms": None,
        "memory_left_bytes": None,
        "savings_ms": None,
        "bound_by": None,
        "step_ms": None,
        "samples_per_s": None,
        "price_per_billion_samples": None,
    }
    if result.status != "ok" or result.plan is None:
        return found
    used = result.plan.bytes_per_device(task)
    saved = savings(task, result.plan)
    found["embedding_ms"] = result.total_ms
    found["memory_left_bytes"] = min(room - size for room, size in zip(task.capacity_bytes, used, strict=True))
    found["savings_ms"] = saved
    found["bound_by"] = bound_by(saved, result.total_ms)
    dense = economics.dense.get(machine.gpu)
    if dense is not None:
        share = 1.0 if dense.samples is None else task.batch_size / machine.devices / dense.samples
        found["step_ms"] = result.total_ms + dense.ms * share
        found["samples_per_s"] = task.batch_size / found["step_ms"] * 1e3
    price = economics.price.get(machine.gpu)
    if price is not None and found["samples_per_s"] is not None:
        hours = 1e9 / found["samples_per_s"] / 3600.0
        found["price_per_billion_samples"] = hours * price * machine.devices
    return found


def render(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of what `describe_machine` knows, and why machines have no plan."""
    columns = {
        "step_ms": ("step", "{:.3f} ms"),
        "samples_per_s": ("samples/s", "{:,.0f}"),
        "price_per_billion_samples": ("per 10^9 samples", "{:,.2f}"),
    }
    known = {key: of for key, of in columns.items() if any(machine[key] is not None for machine in machines)}
    headers = [
        "GPU",
        "devices",
        "batch",
        "embeddings",
        "left on the fullest",
        "bound by",
        *(h for h, _ in known.values()),
    ]
    rows = []
    for machine in machines:
        cells = ["no plan" if machine["status"] == "infeasible" else "failed", "", ""]
        if machine["embedding_ms"] is not None:
            bound = machine["bound_by"]
            if bound != "start-up":
                bound += f" (-{100 * machine['savings_ms'][bound] / machine['embedding_ms']:.0f} %)"
            cells = [f"{machine['embedding_ms']:.3f} ms", f"{machine['memory_left_bytes'] / GIB:.1f} GiB", bound]
        more = ["" if machine[key] is None else shape.format(machine[key]) for key, (_, shape) in known.items()]
        rows.append([machine["gpu"], machine["devices"], f"{machine['batch_size']:,}", *cells, *more])
    aligned = ("left", *["right"] * 4, "left", *["right"] * len(known))
    why = [f"{one['devices']} x {one['gpu']}: {one['reason']}" for one in machines if one["reason"] is not None]
    return "\n".join([tabulate(rows, headers=headers, disable_numparse=True, colalign=aligned), *why])
