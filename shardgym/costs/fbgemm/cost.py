"""FbgemmCost: the cost of plans measured with FBGEMM kernels and a real all-to-all."""

from __future__ import annotations

import dataclasses
import random
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.collectives.groups import Groups
from shardgym.costs.fbgemm.communication import Choice, Comm, measured_comm, measures, modelled_comm
from shardgym.costs.fbgemm.compute import distinct, time_contents
from shardgym.costs.fbgemm.content import Content, contents_of
from shardgym.costs.fbgemm.measured_plan import MeasuredPlan
from shardgym.costs.fbgemm.operator import CPU_OPTIMIZERS
from shardgym.costs.fbgemm.pool import WorkerPool, require_fbgemm
from shardgym.costs.fbgemm.settings import MeasureSettings
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.costs.workers.machine import cpu_tag
from shardgym.costs.workers.statistics import centre
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


class FbgemmCost(CostModel):
    """Measures plans of one task together, interleaved in random order.

    Compute of every distinct device content is timed alone on one core or GPU. Times are means over batches of ids of
    the median over rounds of the same batch; `PlanCost.noise` is a bootstrap over rounds. A plan that cannot
    be measured costs infinity and says why; the others are not affected. Workers start with the first
    evaluation and stay until `close`.

    Example:
        >>> with make_cost("fbgemm", device="cpu", rounds=5) as cost:      # doctest: +SKIP
        ...     first, second = cost.evaluate(task, [plan, other_plan])

    Args:
        device: "cpu" or "cuda".
        workers: processes that measure compute at the same time, each with a core or GPU of its own.
        rounds: passes over everything that is compared, at least 2.
        warmups: untimed steps per round.
        iterations: timed steps per round.
        comm: "measured", "modelled", or "auto": measured where the machine can (on the CPU up to 4
            devices per core, on CUDA as many as there are GPUs).
        timeout_s: seconds that one round of one device may take.
        seed: of ids and of the order of measurements.

    Raises:
        InputError: a setting is out of range.
        MissingDependencyError: FBGEMM is not installed.
    """

    name: ClassVar[str] = "fbgemm"
    version: ClassVar[str] = "1"
    deterministic: ClassVar[bool] = False

    def __init__(
        self,
        device: str = "cpu",
        workers: int = 1,
        rounds: int = 7,
        warmups: int = 2,
        iterations: int = 3,
        comm: Choice = "auto",
        timeout_s: float = 120.0,
        seed: int = 0,
    ) -> None:
        self._settings = MeasureSettings(device, workers, rounds, warmups, iterations, comm, timeout_s, seed)
        require_fbgemm(device)
        self._rng = random.Random(seed)
        self._pool = WorkerPool(device, workers, seed, timeout_s)
        self._groups = Groups(device, timeout_s)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings only: every process has workers of its own."""
        return _remake, (self.settings(),)

    @property
    def hardware(self) -> str:
        """Tag of the CPU and its cores, or of the GPU."""
        return cpu_tag() if self._settings.device == "cpu" else str(self._pool.facts()["hardware"])

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return dataclasses.asdict(self._settings)

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions after a first kernel has run; starts workers.

        Raises:
            MeasurementError: FBGEMM does not work here, e.g. because it does not fit the installed torch.
        """
        return self._pool.facts()

    def worker_pids(self) -> list[int]:
        """Process ids of the compute workers that are alive."""
        return self._pool.pids()

    def close(self) -> None:
        """End all processes; they are started again when needed."""
        self._pool.close()
        self._groups.close()

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        self._require_kernels(task)
        measured = measures(self._settings.comm, self._settings.device, task.num_devices)
        with self._lock:
            held = [contents_of(task, plan) for plan in plans]
            samples, failed, noted = time_contents(self._pool, _distinct(held), rng=self._rng, **self._effort)
            reasons = {n: reason for n, contents in enumerate(held) if (reason := _first_failure(contents, failed))}
            compute = {n: self._stack(held[n], samples) for n in range(len(plans)) if n not in reasons}
            sums = {n: centre(times).sum(axis=1) for n, times in compute.items()}
            alive = {n: plans[n] for n in compute}
            comm, lost = self._communicate(task, alive, sums, measured=measured)
        reasons |= lost
        session = uuid.uuid4().hex
        told = [distinct(note for c in contents if c is not None for note in noted.get(c, ())) for contents in held]
        return [
            self.no_cost(task, f"could not be measured: {reasons[n]}")
            if n in reasons
            else MeasuredPlan(task, compute[n], comm[n], measured, told[n]).cost(
                self.name, self.version, self.hardware, self._settings.device, session
            )
            for n in range(len(plans))
        ]

    @property
    def _effort(self) -> dict[str, int]:
        chosen = self._settings
        return {"rounds": chosen.rounds, "warmups": chosen.warmups, "iterations": chosen.iterations}

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:
        choice, device = self._settings.comm, self._settings.device
        measured = choice == "measured" or measures(choice, device, task.num_devices)
        return "measured", "measured" if measured else "modelled"

    def _require_kernels(self, task: ShardingTask) -> None:
        if self._settings.device == "cpu" and task.optimizer not in CPU_OPTIMIZERS:
            raise InputError(
                f"optimizer '{task.optimizer}': FBGEMM has no CPU kernel for it; "
                f"measure with device='cuda', or use one of {', '.join(sorted(CPU_OPTIMIZERS))}"
            )

    def _communicate(
        self, task: ShardingTask, plans: Mapping[int, ShardingPlan], compute: Mapping[int, Floats], *, measured: bool
    ) -> tuple[dict[int, Comm], dict[int, str]]:
        if not measured or task.num_devices == 1:  # the model says 0 for one device, and so does the absence of peers
            return modelled_comm(task, plans, compute), {}
        return measured_comm(self._groups.of(task.num_devices), task, plans, compute, rng=self._rng, **self._effort)

    def _stack(self, contents: Sequence[Content | None], samples: Mapping[Content, Floats]) -> Floats:
        """Return the times of all devices of a plan, shape (rounds, iterations, D, 2); an empty device takes none."""
        idle = np.zeros((self._settings.rounds, self._settings.iterations, 2))
        return np.stack([idle if c is None else samples[c] for c in contents], axis=2)


def _remake(settings: dict[str, Any]) -> FbgemmCost:
    return FbgemmCost(**settings)


def _distinct(held: Sequence[Sequence[Content | None]]) -> list[Content]:
    return list(dict.fromkeys(content for contents in held for content in contents if content is not None))


def _first_failure(contents: Sequence[Content | None], failed: Mapping[Content, str]) -> str | None:
    return next((f"device {d}: {failed[c]}" for d, c in enumerate(contents) if c is not None and c in failed), None)
