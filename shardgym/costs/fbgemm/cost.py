"""FbgemmCost: the cost of plans measured with FBGEMM kernels.

On the CPU all devices of a plan take complete training steps together, a process for each (`step.py`, `step_rank.py`),
and on CUDA where there are as many GPUs as devices. With fewer GPUs the kernels of each device are timed alone
(`kernels.py`), and exchanges are modelled.
"""

import functools
import os
import random
import threading
import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.fbgemm import namespaces, step
from shardgym.costs.fbgemm.jobs import shard_sets
from shardgym.costs.fbgemm.namespaces import ShapedLinks
from shardgym.costs.fbgemm.pace import Pace
from shardgym.costs.fbgemm.step import mean_of_medians, relative_error, time_shard_sets
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.fbgemm.workers import PRELOADED, Workers, kernel_timer, require_fbgemm, step_ranks
from shardgym.costs.link_model import shipped_model
from shardgym.costs.links import exchange_times, transfer_ms
from shardgym.costs.mixed_tables import check_alike
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.costs.shard_keys import output_widths
from shardgym.errors import InputError, check_int, short_repr
from shardgym.machine import cpu_tag, usable_cores
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import format_devices
from shardgym.processes import preload
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask
from shardgym.tasks.topology import Topology

CommChoice = Literal["auto", "measured", "modelled"]

#: Optimisers that FBGEMM has CPU kernels for.
CPU_OPTIMIZERS = frozenset({"exact_sgd", "rowwise_adagrad", "adagrad"})
#: Processes per core up to which complete steps run.
RANKS_PER_CORE = 4
#: Process groups that stay alive for later tasks with other numbers of devices or links.
_GROUPS_KEPT = 2


#: Phases and their noise, as in `PlanCost`, notes, and the pace of the machine.
Measurement = tuple[Floats, float, tuple[str, ...], float]


class FbgemmCost(CostModel):
    """Measures plans of one task together, interleaved in random order.

    On the CPU, work is the CPU time of each device's process in complete training steps. Exchanges are measured between
    network namespaces that have links of the topology's rate, which takes root; or modelled for such links. Where work
    takes longer than on the machine of the shipped simulator, exchanges take as many times longer, so that both weigh
    the same on all machines and days: this is the `pace` of a cost (`pace.py`). On CUDA, complete steps take a GPU for
    each device; with fewer, the compute of each distinct shard set is timed alone, exchanges of outputs are modelled,
    and there is none of ids. A plan that cannot be measured costs infinity, with the reason, and does not affect the
    others. Processes start with the first evaluation and stay until `close`.

    Example:
        >>> with make_cost("fbgemm", device="cpu", rounds=5) as cost:      # doctest: +SKIP
        ...     first, second = cost.evaluate(task, [plan, other_plan])

    Args:
        device: "cpu" or "cuda"; `CUDA_VISIBLE_DEVICES` chooses GPUs.
        rounds: passes over everything that is compared; at least 2, as the spread is taken over them.
        warmups: untimed steps per round; the second step of a plan already takes what later ones do.
        iterations: timed steps per round, each with ids of its own.
        comm: whether exchanges are "measured" or "modelled"; "auto" measures them where that can be done. On the CPU
            that takes root and links of 0.025e9 to 0.25e9 bytes per second; on CUDA a GPU for each device.
        timeout_s: seconds that one round of one plan (of one device, where kernels are timed alone) may take before its
            processes are replaced.
        seed: seed of the ids and of the order of measurements.
        ids_hidden: whether the total leaves out the exchange of ids, which training pipelines hide.
        socket_bytes: most bytes of a socket's send buffer, and of its receive buffer, between network namespaces. A
            device is through with what it sends when buffers have taken it, so they are small against what is sent, as
            those of NCCL are.

    Raises:
        InputError: a setting is out of range.
        MissingDependencyError: FBGEMM is not installed.
        MeasurementError: this system is not Linux.
    """

    name: ClassVar[str] = "fbgemm"
    version: ClassVar[str] = "6"
    deterministic: ClassVar[bool] = False
    replicas: ClassVar[bool] = True
    unpooled: ClassVar[bool] = True

    def __init__(
        self,
        device: str = "cpu",
        rounds: int = 5,
        warmups: int = 1,
        iterations: int = 3,
        comm: CommChoice = "auto",
        timeout_s: float = 120.0,
        seed: int = 0,
        ids_hidden: bool = False,
        socket_bytes: int = namespaces.SOCKET_BYTES,
    ) -> None:
        for name, choice, choices in (("device", device, ("cpu", "cuda")), ("comm", comm, get_args(CommChoice))):
            if choice not in choices:
                raise InputError(f"{name}={choice!r}: expected one of {', '.join(choices)}")
        least = {"rounds": 2, "warmups": 0, "iterations": 1, "seed": 0, "socket_bytes": 4096}
        given = {
            "rounds": rounds, "warmups": warmups, "iterations": iterations, "seed": seed, "socket_bytes": socket_bytes,
        }  # fmt: skip
        for name, number in given.items():
            check_int(name, number, least[name])
        if not (isinstance(timeout_s, int | float) and 0 < timeout_s < 1e6):
            raise InputError(f"timeout_s={short_repr(timeout_s)}: expected seconds between 0 and 1e6")
        require_fbgemm(device)
        # Settings of a run say so; its records then have exchanges of one kind, wherever it is resumed or verified.
        if device == "cpu" and comm == "auto" and namespaces.why_not():
            comm = "modelled"
        self._device = device
        self.replicas = device == "cpu"  # type: ignore[misc]
        self._effort = {"rounds": rounds, "warmups": warmups, "iterations": iterations}
        self._comm: CommChoice = comm
        self._timeout_s = timeout_s
        self._seed = seed
        self._ids_hidden = ids_hidden
        self._socket_bytes = socket_bytes
        self._rng = random.Random(seed)
        if device == "cpu":
            preload(PRELOADED)
        #: Times kernels where there are fewer GPUs than devices.
        self._timer = kernel_timer(device, seed, timeout_s) if device == "cuda" else None
        #: By number of devices, devices of a fast domain and links.
        self._groups: dict[tuple[int, int, ShapedLinks | None], tuple[Workers, Pace]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings only: every process has workers of its own."""
        return functools.partial(FbgemmCost, **self.settings()), ()

    @property
    def hardware(self) -> str:
        """Tag of the CPU and its cores, or of the GPU, which takes a process that looks."""
        if self._timer is None:
            return cpu_tag()
        self._timer.start()
        return str(self._timer.facts[0]["hardware"])

    @property
    def max_devices(self) -> int | None:
        """On the CPU a step runs a process for each device, up to four for each core; kernels of CUDA run alone."""
        return RANKS_PER_CORE * len(usable_cores()) if self._device == "cpu" else None

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return {
            "device": self._device, **self._effort, "comm": self._comm, "timeout_s": self._timeout_s,
            "seed": self._seed, "ids_hidden": self._ids_hidden, "socket_bytes": self._socket_bytes,
        }  # fmt: skip

    def close(self) -> None:
        """End all processes; they are started again when needed."""
        if self._timer is not None:
            self._timer.close()
        while self._groups:
            self._groups.popitem()[1][0].close()

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Measure plans in rounds, all of them interleaved."""
        check_alike(task, "cost 'fbgemm'", unpooled=self._device == "cpu")
        if self._device == "cpu" and task.optimizer not in CPU_OPTIMIZERS:
            raise InputError(
                f"optimizer '{task.optimizer}': FBGEMM has no CPU kernel for it; "
                f"measure with device='cuda', or use one of {', '.join(sorted(CPU_OPTIMIZERS))}"
            )
        communication = self._sources(task)[1]
        with self._lock:
            timed = communication == "measured"
            if timed or self._timer is None:
                found, failed = self._steps(task, plans, timed=timed)
            else:
                found, failed = self._kernels(self._timer, task, plans)
        session = uuid.uuid4().hex
        hardware = self.hardware
        costs = []
        for n in range(len(plans)):
            if n in failed:
                costs.append(self.no_cost(task, f"could not be measured: {failed[n]}"))
                continue
            per_device, noise, notes, pace = found[n]
            cost = PlanCost(
                per_device=per_device,
                cost=self.name,
                version=self.version,
                hardware=hardware,
                compute="measured",
                communication=communication,
                pace=pace,
                noise=noise,
                repeats=self._effort["rounds"] * self._effort["iterations"],
                session=session,
                notes=(*notes, *device_notes(task, hardware)),
                ids_hidden=self._ids_hidden,
            )
            costs.append(cost)
        return costs

    def _why_not(self, task: ShardingTask, plan: ShardingPlan) -> str:
        """See `CostModel`."""
        if plan.group_size is not None:
            return (
                f"cost 'fbgemm' does not support 2D parallelism, but the plan has group_size {plan.group_size}: use "
                "cost 'gpu' or 'roofline'"
            )
        for shard in plan.shards:
            if len(shard.devices) > 1 and not task.table(shard.table).is_pooled:
                return (
                    f"table '{shard.table}' is unpooled but held by {format_devices(shard.devices)}: FBGEMM's dense "
                    "CPU kernel only pools; use cost 'gpu' or 'roofline'"
                )
        return super()._why_not(task, plan)

    def _steps(
        self, task: ShardingTask, plans: Sequence[ShardingPlan], *, timed: bool
    ) -> tuple[dict[int, Measurement], dict[int, str]]:
        """Measure complete steps; returns what was found and why plans failed, by number of the plan."""
        if self.max_devices is not None and task.num_devices > self.max_devices:
            raise InputError(
                f"a step runs a process for each of {task.num_devices} devices, but this machine takes up to "
                f"{self.max_devices}: use one with more cores, or cost 'simulator' or 'roofline'"
            )
        # One device has no links: timing its exchanges takes no namespace.
        topology = task.topology
        shaped = None
        if timed and task.num_devices > 1 and self._device == "cpu":
            shaped = ShapedLinks.of(topology, dilation=namespaces.DILATION, socket_bytes=self._socket_bytes)
        group, of_group = self._group(task.num_devices, topology.fast_domain_size, shaped)
        group.start()
        pace = of_group.now() if self._device == "cpu" else 1.0
        steps, failed = step.time_steps(
            group,
            {n: StepPlan.of(task, plan) for n, plan in enumerate(plans)},
            **self._effort,
            seed=self._seed,
            rng=self._rng,
            timed_exchanges=timed,
            pace=pace,
        )
        links = None if timed else shipped_model()
        if self._device == "cpu":
            notes = step_notes(topology, shaped, real_time=all(fact["real_time"] for fact in group.facts))
        else:
            of_nccl = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")]
            notes = ("complete steps on this machine's GPUs: the task's links are not used", *of_nccl)
        phases_of = functools.partial(
            step.phases_of, pace=pace, with_latency=shaped is not None, ids_hidden=self._ids_hidden
        )
        return {n: (*phases_of(task, done, links), notes, pace) for n, done in steps.items()}, failed

    def _kernels(
        self, timer: Workers, task: ShardingTask, plans: Sequence[ShardingPlan]
    ) -> tuple[dict[int, Measurement], dict[int, str]]:
        """Measure kernels alone and model exchanges; returns the same."""
        sets = {n: shard_sets(task, plan) for n, plan in enumerate(plans)}
        distinct = dict.fromkeys(held for of_plan in sets.values() for held in of_plan if held is not None)
        samples, without, notes = time_shard_sets(timer, distinct, rng=self._rng, **self._effort)
        idle = np.zeros((self._effort["rounds"], self._effort["iterations"], 2))
        found: dict[int, Measurement] = {}
        failed: dict[int, str] = {}
        for n, of_plan in sets.items():
            reasons = [f"device {d}: {without[s]}" for d, s in enumerate(of_plan) if s is not None and s in without]
            if reasons:
                failed[n] = reasons[0]
                continue
            times = np.stack([idle if s is None else samples[s] for s in of_plan], axis=2)
            widths = np.array(output_widths(task, plans[n]))
            transfer = transfer_ms(task.topology, widths, task.batch_size, ELEMENT_BYTES[task.precision])
            of_devices = [note for s in of_plan if s is not None for note in notes.get(s, ())]
            of_links = f"communication from the link model of '{task.topology.interconnect}'"
            phases = functools.partial(_kernel_phases, times, transfer)
            noise = relative_error(phases, len(times))
            found[n] = phases(), noise, tuple(dict.fromkeys([*of_devices, of_links])), 1.0
        return found, failed

    def _group(self, size: int, domain_size: int, links: ShapedLinks | None) -> tuple[Workers, Pace]:
        """Return the process group of this kind, and close the least recently used one beyond `_GROUPS_KEPT`."""
        key = (size, domain_size, links)
        found = self._groups.pop(key, None)
        if found is None:
            group = step_ranks(size, self._device, self._timeout_s, domain_size, links)
            found = group, Pace(group, size)
        self._groups[key] = found
        while len(self._groups) > _GROUPS_KEPT:
            self._groups.pop(next(iter(self._groups)))[0].close()
        return found

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:
        if self._device == "cpu":
            why_not = why_not_measured(task.topology)
        else:
            why_not = "" if task.num_devices <= _visible_gpus() else f"{task.num_devices} devices need as many GPUs"
        if why_not and self._comm == "measured":
            raise InputError(f"comm='measured': {why_not}; use comm='auto' or comm='modelled'")
        return "measured", "modelled" if why_not or self._comm == "modelled" else "measured"


def why_not_measured(topology: Topology) -> str:
    """Return why exchanges of complete steps cannot be measured for these links on this machine; "" if they can."""
    if topology.num_devices == 1:
        return ""
    rates = {topology.intra_bandwidth}
    if topology.fast_domain_size < topology.num_devices:
        rates.add(topology.inter_bandwidth)
    for rate in sorted(rates):
        if not namespaces.SLOWEST_LINK <= rate <= namespaces.FASTEST_LINK:
            return (
                f"the task has links of {rate:.3g} bytes/s, but shaped links support "
                f"{namespaces.SLOWEST_LINK:.3g} to {namespaces.FASTEST_LINK:.3g}"
            )
    return namespaces.why_not()


def step_notes(topology: Topology, shaped: ShapedLinks | None, *, real_time: bool) -> tuple[str, ...]:
    """Return which part of a complete step is what; exchanges are modelled where no links are `shaped`."""
    notes = ["compute: CPU time of each device's thread in complete steps of all devices"]
    if topology.num_devices > 1:
        rates = ShapedLinks.of(topology, dilation=1.0).rates
        links = f"links of '{topology.interconnect}' with {' and '.join(f'{rate:.3g}' for rate in rates)} bytes/s"
        if shaped is not None:
            settings = ", ".join(f"{name} {value}" for name, value in shaped.host_settings.items())
            notes.append(
                f"exchanges: measured between network namespaces for {links}, slowed down {shaped.dilation:g} times, "
                f"and times divided by that; {settings}"
            )
        else:
            notes.append(f"exchanges: modelled for {links}, by a model fitted on {shipped_model().hardware}")
    if not real_time:
        notes.append("processes had no real-time priority: other programs disturb their exchanges")
    return tuple(notes)


def device_notes(task: ShardingTask, hardware: str) -> tuple[str, ...]:
    """Return a note if compute was measured on a CPU and the task is for GPUs, or the other way round."""
    wanted = task.topology.device
    alike = hardware.startswith("cpu") == (wanted == "cpu-core")
    return () if alike else (f"task is for '{wanted}' devices; compute was measured on {hardware}",)


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _kernel_phases(times: Floats, transfer: Floats, rounds: Ints | slice = slice(None)) -> Floats:
    """Return phases of devices, shape (D, 5), from times of kernels, shape (rounds, iterations, D, 2)."""
    compute_ms = mean_of_medians(times[rounds])
    no_ids, forward, backward = exchange_times(compute_ms, transfer, ids_hidden=True)
    return np.column_stack([no_ids, compute_ms[:, 0], forward, backward, compute_ms[:, 1]])
