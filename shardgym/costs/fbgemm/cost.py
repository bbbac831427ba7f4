"""FbgemmCost: the cost of plans measured with FBGEMM kernels and a real all-to-all."""

from __future__ import annotations

import functools
import random
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.fbgemm import step
from shardgym.costs.fbgemm.communication import CollectiveGroup, CommTimes, time_communication
from shardgym.costs.fbgemm.jobs import ShardSet, shard_sets
from shardgym.costs.fbgemm.machine import cpu_tag, usable_cores
from shardgym.costs.fbgemm.pool import WorkerPool, require_fbgemm
from shardgym.costs.fbgemm.rounds import mean_of_medians, relative_error_of_total, time_shard_sets
from shardgym.costs.fbgemm.step import phases_of, time_steps
from shardgym.costs.link_model import shipped_model
from shardgym.costs.links import exchange_times, link_notes, pooled_widths
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

CommChoice = Literal["auto", "measured", "modelled"]
Version = Literal["1", "2", "3"]

#: Optimisers that FBGEMM has CPU kernels for.
CPU_OPTIMIZERS = frozenset({"exact_sgd", "rowwise_adagrad", "adagrad"})
#: Processes per core up to which exchanges are measured on the CPU, and complete steps run.
RANKS_PER_CORE = 4
#: Process groups that stay alive for later tasks with the same number of devices.
_GROUPS_KEPT = 2


class FbgemmCost(CostModel):
    """Measures plans of one task together, interleaved in random order.

    The compute of each distinct shard set of a device is timed alone on one core or GPU. A time is the mean over
    batches of ids of the median over rounds of the same batch; `PlanCost.noise` is a bootstrap over rounds. A plan that
    cannot be measured costs infinity, with the reason, and does not affect the others. Workers start with the first
    evaluation and stay until `close`.

    Example:
        >>> with make_cost("fbgemm", device="cpu", rounds=5) as cost:      # doctest: +SKIP
        ...     first, second = cost.evaluate(task, [plan, other_plan])

    Args:
        device: "cpu" or "cuda".
        workers: processes that measure compute at the same time, each with a core or GPU of its own. Workers on
            cores share caches and memory bandwidth, so one gives the quietest times.
        rounds: passes over everything that is compared; at least 2, as the spread is taken over them.
        warmups: untimed steps per round.
        iterations: timed steps per round, each with ids of its own.
        comm: "measured", "modelled", or "auto": measured where the machine can (on the CPU up to 4
            devices per core, on CUDA as many as there are GPUs).
        timeout_s: seconds that one round of one device may take before its worker is replaced.
        seed: of ids and of the order of measurements.
        version: "1" times the compute of each device alone and adds all-to-alls of its own; "2" times complete
            training steps of all devices at once (`shardgym.costs.fbgemm.step`; CPU only); "3" does so in processes
            that keep the memory that they free, as those of a training run do after a while.
        ids_hidden: of versions 2 and 3: whether the total leaves out the exchange of ids, which training pipelines
            hide.

    Raises:
        InputError: a setting is out of range.
        MissingDependencyError: FBGEMM is not installed.
        MeasurementError: this system is not Linux.
    """

    name: ClassVar[str] = "fbgemm"
    deterministic: ClassVar[bool] = False
    #: Several times what any board of ours was measured with.
    limits: ClassVar[Mapping[str, float]] = {
        "workers": 16, "rounds": 50, "warmups": 20, "iterations": 50, "timeout_s": 600, "seed": 2**32 - 1,
    }  # fmt: skip

    def __init__(
        self,
        device: str = "cpu",
        workers: int = 1,
        rounds: int = 7,
        warmups: int = 2,
        iterations: int = 3,
        comm: CommChoice = "auto",
        timeout_s: float = 120.0,
        seed: int = 0,
        version: Version | Literal[1, 2, 3] = "1",
        ids_hidden: bool = False,
    ) -> None:
        version = cast("Version", str(version))  # from a command line or YAML it comes as a number
        named = (
            ("device", device, ("cpu", "cuda")),
            ("comm", comm, get_args(CommChoice)),
            ("version", version, get_args(Version)),
        )
        for name, choice, choices in named:
            if choice not in choices:
                raise InputError(f"{name}={choice!r}: expected one of {', '.join(choices)}")
        self._effort = {"rounds": rounds, "warmups": warmups, "iterations": iterations}
        least = {"workers": 1, "rounds": 2, "warmups": 0, "iterations": 1, "seed": 0}
        for name, number in {"workers": workers, **self._effort, "seed": seed}.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < least[name]:
                raise InputError(f"{name}={number!r}: expected a whole number, at least {least[name]}")
        if isinstance(timeout_s, bool) or not 0 < timeout_s < 1e6:
            raise InputError(f"timeout_s={timeout_s}: expected seconds between 0 and 1e6")
        if version != "1" and device != "cpu":
            raise InputError(f"version '{version}' for device='{device}': it measures on the CPU; use version='1'")
        if ids_hidden and version == "1":
            raise InputError("ids_hidden=True: version '1' exchanges no ids; use version='3'")
        require_fbgemm(device)
        self._version = version
        self._ids_hidden = ids_hidden
        self._seed = seed
        self._next_batch = 0
        self._device = device
        self._comm: CommChoice = comm
        self._timeout_s = timeout_s
        self._settings = {
            "device": device, "workers": workers, **self._effort, "comm": comm, "timeout_s": timeout_s, "seed": seed,
        }  # fmt: skip
        if version != "1":  # settings of version 1 are as in records from before there was another
            self._settings |= {"version": version, "ids_hidden": ids_hidden}
        self._rng = random.Random(seed)
        self._pool = WorkerPool(device, workers, seed, timeout_s)
        self._groups: dict[int, CollectiveGroup] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings only: every process has workers of its own."""
        return functools.partial(FbgemmCost, **self.settings()), ()

    @property
    def version(self) -> str:  # type: ignore[override]
        """The version chosen, and whether ids are hidden."""
        return f"{self._version}-hidden-ids" if self._ids_hidden else self._version

    @property
    def hardware(self) -> str:
        """Tag of the CPU and its cores, or of the GPU."""
        return cpu_tag() if self._device == "cpu" else str(self._pool.facts()["hardware"])

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return dict(self._settings)

    def facts(self) -> dict[str, Any]:
        """Start the workers, which run a first kernel, and return hardware tag and versions.

        Raises:
            MeasurementError: FBGEMM does not work here, e.g. because it does not fit the installed torch.
        """
        return self._pool.facts()

    def close(self) -> None:
        """End all processes; they are started again when needed."""
        self._pool.close()
        while self._groups:
            self._groups.popitem()[1].close()

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Measure plans in rounds, all of them interleaved."""
        if self._device == "cpu" and task.optimizer not in CPU_OPTIMIZERS:
            raise InputError(
                f"optimizer '{task.optimizer}': FBGEMM has no CPU kernel for it; "
                f"measure with device='cuda', or use one of {', '.join(sorted(CPU_OPTIMIZERS))}"
            )
        if self._version != "1":
            return self._score_steps(task, plans)
        comm_is_measured = measures_comm(self._comm, self._device, task.num_devices)
        with self._lock:
            devices = [shard_sets(task, plan) for plan in plans]
            distinct = dict.fromkeys(shard_set for sets in devices for shard_set in sets if shard_set is not None)
            samples, failed, notes = time_shard_sets(self._pool, distinct, rng=self._rng, **self._effort)
            reasons: dict[int, str] = {}
            compute: dict[int, Floats] = {}
            for n, sets in enumerate(devices):
                failures = [f"device {d}: {failed[s]}" for d, s in enumerate(sets) if s is not None and s in failed]
                if failures:
                    reasons[n] = failures[0]
                else:
                    compute[n] = self._stack(sets, samples)
            compute_ms = {n: mean_of_medians(times).sum(axis=1) for n, times in compute.items()}
            alive = {n: plans[n] for n in compute}
            comm: dict[int, CommTimes] = {}
            if comm_is_measured and task.num_devices > 1:
                group = self._group(task.num_devices)
                comm, comm_failed = time_communication(group, task, alive, compute_ms, rng=self._rng, **self._effort)
                reasons |= comm_failed
            else:  # one device has no peers; the model says 0 for it
                for n, plan in alive.items():
                    forward, backward, _ = exchange_times(task, compute_ms[n], pooled_widths(task, plan))
                    comm[n] = CommTimes(forward[None], backward[None])
        session = uuid.uuid4().hex
        costs = []
        for n, sets in enumerate(devices):
            if n in reasons:
                costs.append(self.no_cost(task, f"could not be measured: {reasons[n]}"))
            else:
                own_notes = dict.fromkeys(note for s in sets if s is not None for note in notes.get(s, ()))
                costs.append(self._plan_cost(task, compute[n], comm[n], comm_is_measured, tuple(own_notes), session))
        return costs

    def _score_steps(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Score plans by complete steps, versions 2 and 3."""
        measured = measures_step_comm(self._comm, task.num_devices)
        most = RANKS_PER_CORE * len(usable_cores())
        if task.num_devices > most:
            raise InputError(
                f"version '{self._version}' runs a process for each of {task.num_devices} devices, this machine takes "
                f"up to {most}; use version='1', or a machine with more cores"
            )
        devices = {n: shard_sets(task, plan) for n, plan in enumerate(plans)}
        with self._lock:
            group = self._group(task.num_devices)
            steps, failed = time_steps(
                group,
                devices,
                **self._effort,
                first_batch=self._next_batch,
                seed=self._seed,
                rng=self._rng,
                keeps_freed=self._version == "3",
            )
            self._next_batch += self._effort["rounds"] * (self._effort["warmups"] + self._effort["iterations"])
            notes = step_notes(task, measured=measured, real_time=all(fact["real_time"] for fact in group.facts))
        session = uuid.uuid4().hex
        costs = []
        for n in devices:
            if n in failed:
                costs.append(self.no_cost(task, f"could not be measured: {failed[n]}"))
                continue
            links = None if measured else shipped_model()
            phases = phases_of(task, steps[n], links=links, ids_hidden=self._ids_hidden)
            cost = PlanCost(
                per_device=phases.per_device,
                cost=self.name,
                version=self.version,
                hardware=self.hardware,
                compute="measured",
                communication="measured" if measured else "modelled",
                noise=phases.noise,
                repeats=self._effort["rounds"] * self._effort["iterations"],
                session=session,
                notes=(*notes, *device_notes(task, self.hardware)),
                ids_hidden=self._ids_hidden,
            )
            costs.append(cost)
        return costs

    def _stack(self, sets: Sequence[ShardSet | None], samples: Mapping[ShardSet, Floats]) -> Floats:
        """Return the times of all devices of a plan, shape (rounds, iterations, D, 2); an empty device takes none."""
        idle = np.zeros((self._effort["rounds"], self._effort["iterations"], 2))
        return np.stack([idle if s is None else samples[s] for s in sets], axis=2)

    def _group(self, size: int) -> CollectiveGroup:
        """Return the process group of this size, and close the least recently used one beyond `_GROUPS_KEPT`."""
        group = self._groups.pop(size, None)
        if group is None:
            if self._version != "1":
                group = CollectiveGroup(size, self._device, self._timeout_s, step.MODULE, step.ENVIRONMENT)
            else:
                group = CollectiveGroup(size, self._device, self._timeout_s)
        self._groups[size] = group
        while len(self._groups) > _GROUPS_KEPT:
            oldest = next(iter(self._groups))
            self._groups.pop(oldest).close()
        return group

    def _plan_cost(
        self,
        task: ShardingTask,
        compute: Floats,
        comm: CommTimes,
        comm_is_measured: bool,
        notes: tuple[str, ...],
        session: str,
    ) -> PlanCost:
        """Return the cost of a plan from its compute, shape (rounds, iterations, D, 2), and communication."""
        hardware = self.hardware
        forward = comm.forward[:, None]
        backward = comm.backward[:, None]
        compute_ms = mean_of_medians(compute)
        no_ids = np.zeros(len(compute_ms))
        columns = [no_ids, compute_ms[:, 0], mean_of_medians(forward), mean_of_medians(backward), compute_ms[:, 1]]
        communication: Source = "measured" if comm_is_measured else "modelled"
        return PlanCost(
            per_device=np.column_stack(columns),
            cost=self.name,
            version=self.version,
            hardware=hardware,
            compute="measured",
            communication=communication,
            noise=relative_error_of_total(compute, forward, backward),
            repeats=compute.shape[0] * compute.shape[1],
            session=session,
            notes=(
                *notes,
                *device_notes(task, hardware),
                *comm_notes(task, measured=comm_is_measured, device=self._device),
                *link_notes(task, communication, hardware),
            ),
        )

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:
        if self._version != "1":
            return "measured", "measured" if measures_step_comm(self._comm, task.num_devices) else "modelled"
        # A judge of "measured" exchanges says so also of a task that has too many devices for them.
        measured = self._comm == "measured" or measures_comm(self._comm, self._device, task.num_devices)
        return "measured", "measured" if measured else "modelled"


def measures_comm(choice: CommChoice, device: str, num_devices: int) -> bool:
    """Return whether exchanges of this many devices are measured on this machine.

    Raises:
        InputError: `choice` is "measured" and the machine has too few cores or GPUs.
    """
    if device == "cpu":
        limit = RANKS_PER_CORE * len(usable_cores())
    else:
        import torch

        limit = torch.cuda.device_count()
    if choice == "measured" and num_devices > limit:
        raise InputError(
            f"comm='measured' for {num_devices} devices: this machine takes up to {limit}; "
            "use comm='auto' or comm='modelled'"
        )
    return choice != "modelled" and num_devices <= limit


def measures_step_comm(choice: CommChoice, num_devices: int) -> bool:
    """Return whether complete steps time exchanges of this many devices: every device needs a core of its own.

    Raises:
        InputError: `choice` is "measured" and there are fewer cores.
    """
    cores = len(usable_cores())
    if choice == "measured" and num_devices > cores:
        raise InputError(
            f"comm='measured' for {num_devices} devices on {cores} cores: complete steps time exchanges where "
            "every device has its core; use comm='auto' or comm='modelled'"
        )
    return choice != "modelled" and num_devices <= cores


def step_notes(task: ShardingTask, *, measured: bool, real_time: bool) -> tuple[str, ...]:
    """Return which part of a complete step is what."""
    topology = task.topology
    notes = ["compute: CPU time of each device's thread in complete steps of all devices"]
    if measured:
        notes.append("exchanges: wall time over the loopback interface, every device on a core of its own")
    else:
        notes.append(
            f"exchanges: modelled for links of '{topology.interconnect}' with {topology.intra_bandwidth:.3g} bytes/s, "
            f"one per device, by a model fitted on {shipped_model().hardware}"
        )
    if not real_time:
        notes.append("processes had no real-time priority: other programs disturb their exchanges")
    return tuple(notes)


def comm_notes(task: ShardingTask, *, measured: bool, device: str) -> tuple[str, ...]:
    """Return caveats for a reader of the communication times."""
    if not measured:
        return (f"communication from the link model of '{task.topology.interconnect}'",)
    cores = len(usable_cores())
    crowded = device == "cpu" and task.num_devices > cores
    return (f"{task.num_devices} processes share {cores} cores in the exchange",) if crowded else ()


def device_notes(task: ShardingTask, hardware: str) -> tuple[str, ...]:
    """Return a note if compute was measured on other hardware than the task's topology names."""
    wanted = re.sub("[^a-z0-9]", "", task.topology.device.lower())
    measured_on = re.sub("[^a-z0-9]", "", hardware.lower())
    matches = hardware.startswith("cpu") if wanted == "cpucore" else wanted in measured_on
    return () if matches else (f"task is for '{task.topology.device}' devices; compute was measured on {hardware}",)
