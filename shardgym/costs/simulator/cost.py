"""SimulatorCost: the learned cost model, for whole plans and for placing shards one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardgym.arguments import check_instance, check_list_of
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import ONE_PLAN, CostModel, PlanCost, Source, require_open
from shardgym.costs.simulator.oracle_networks import ComputeNet
from shardgym.costs.simulator.predictor import AdditivePredictor, Familiarity, PlanBatch, Predictor
from shardgym.costs.simulator.weights import ROLES, Role, find_weights, load_weights
from shardgym.errors import InputError, UnknownNameError
from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ShardingTask

#: Tasks whose encoded shards are kept; solvers and environments return to the same few.
_TASKS_KEPT = 64

#: Where a candidate is that is on no device.
UNPLACED = -1


class SimulatorCost(CostModel):
    """Predicts plans with networks that were trained once on measurements. Runs on NumPy alone.

    Weights from a machine that could not measure exchanges, such as one with a single GPU, predict compute alone;
    communication is then modelled by the task's topology, and `PlanCost` says so. A plan gets a note when it leaves
    the range of the training data, or when the ensemble disagrees on it. So do predicted exchanges of a task that
    names links of its own.

    Example:
        >>> cost = make_cost("simulator", weights="model")                 # doctest: +SKIP
        >>> state = cost.begin(task)                                       # doctest: +SKIP
        >>> state.what_if([0, 0, 1], [0, 1, 1])                            # doctest: +SKIP

    Args:
        weights: a folder written by `shardgym pretrain`, or one of its `.safetensors` files; those that
            ship with the package when None.
        role: "oracle", or "judge" for the second simulator of another architecture.
        hardware: tag that the weights must have.

    Raises:
        InputError: there are no such weights, or they are damaged or of another schema, role or hardware; or a
            solver asks for the judge.
    """

    name: ClassVar[str] = "simulator"
    deterministic: ClassVar[bool] = True

    def __init__(self, weights: str | Path | None = None, role: Role = "oracle", hardware: str | None = None) -> None:
        if role not in ROLES:
            raise UnknownNameError("role of a simulator", str(role), ROLES)
        _require_open(role)
        self._settings = {"weights": None if weights is None else str(weights), "role": role, "hardware": hardware}
        self._weights = load_weights(find_weights(weights, role, hardware), role, hardware)
        # Built by the first prediction: a run that scores with another cost only needs the weights checked.
        self._predictor: Predictor | None = None

    @property
    def version(self) -> str:  # type: ignore[override]
        """Digest of the weights, shortened."""
        return self._weights.version

    @property
    def hardware(self) -> str:
        """Tag of the machine that the training data was measured on."""
        return self._weights.hardware

    @property
    def learned(self) -> bool:
        """Always true."""
        return True

    @property
    def scores_only(self) -> bool:
        """Whether this is a judge."""
        return self.role == "judge"

    @property
    def predicts_exchanges(self) -> bool:
        """Whether communication is predicted; otherwise it is modelled by the task's topology."""
        return self._weights.predicts_exchanges

    @property
    def role(self) -> Role:
        """Whether this is an oracle or a judge."""
        return self._weights.role

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return {k: v for k, v in self._settings.items() if v is not None and (k, v) != ("role", "oracle")}

    def predictor(self) -> AdditivePredictor:
        """Return a predictor that knows no task yet, for searches and environments.

        Raises:
            InputError: this is a judge, which cannot be evaluated incrementally.
        """
        return _additive(self._new_predictor())

    def begin(self, task: ShardingTask, shards: Sequence[Shard] | None = None) -> PlacementState:
        """Start placing shards one by one, for search and environments.

        Args:
            task: the task.
            shards: candidates, whatever devices they name; every table whole when None.

        Returns:
            A state with nothing placed.

        Raises:
            InputError: this is a judge, which cannot be evaluated incrementally, or the task is of a kind
                that the weights were not trained on; or these are no task and shards.
        """
        check_instance("task", task, ShardingTask)
        predictor = _additive(self._shared_predictor())
        whole = [Shard.whole(table, 0) for table in task.tables]
        return PlacementState(task, predictor, whole if shards is None else check_list_of("shards", shards, Shard))

    def familiarity(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[Familiarity]:
        """Say for each feasible plan how far it is from the training data.

        Raises:
            InputError: the task is of a kind that the weights were not trained on, or these are no task and plans.
            InfeasiblePlanError: a plan is infeasible.
        """
        _require_open(self.role)
        check_instance("task", task, ShardingTask)
        plans = check_list_of("plans", plans, ShardingPlan, ONE_PLAN)
        for plan in plans:
            plan.validate(task)
        predictor = self._shared_predictor()
        return predictor.familiarity(_plan_batch(predictor, task, plans)) if plans else []

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        _require_open(self.role)
        predictor = self._shared_predictor()
        return predictor.plan_costs(_plan_batch(predictor, task, plans))

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:  # noqa: ARG002
        return self._shared_predictor().sources

    def _new_predictor(self) -> Predictor:
        return AdditivePredictor(self._weights) if self.role == "oracle" else Predictor(self._weights)

    def _shared_predictor(self) -> Predictor:
        """Return the predictor of all calls, which encodes a task once; after many tasks, a new one replaces it."""
        if self._predictor is None or self._predictor.num_tasks > _TASKS_KEPT:
            self._predictor = self._new_predictor()
        return self._predictor


class PlacementState:
    """Which candidate shard is on which device, and what that costs.

    Adding a shard costs one vector addition and one call of the head. Candidates are numbered in the order they were
    given. Times agree with `SimulatorCost.evaluate` on the finished plan to rounding. Memory is not checked here.

    Args:
        task: the task.
        predictor: of an oracle.
        candidates: shards that can be placed; the devices they name are ignored.

    Attributes:
        candidates: shards by number.
        devices: of every candidate, `UNPLACED` where it is on none, shape (C,).
        latents: of every candidate, shape (C, 32).
        widths: columns of every candidate, shape (C,).

    Raises:
        InputError: the task is of a kind that the weights were not trained on.
    """

    def __init__(self, task: ShardingTask, predictor: AdditivePredictor, candidates: Sequence[Shard]) -> None:
        self._task = task
        self._predictor = predictor
        self._number = predictor.add_task(task)
        self.candidates: list[Shard] = []
        self.devices: Ints = np.zeros(0, dtype=np.int64)
        self.latents: Floats = np.zeros((0, ComputeNet.LATENT))
        self.widths: Floats = np.zeros(0)
        self._counts: Ints = np.zeros(task.num_devices, dtype=np.int64)
        self._sums: Floats = np.zeros((task.num_devices, ComputeNet.LATENT))
        self.extend(candidates)

    def extend(self, shards: Sequence[Shard]) -> list[int]:
        """Add candidates, encoded together; return their numbers."""
        if not shards:
            return []
        encoded = self._predictor.encode(self._task, shards)
        first = len(self.candidates)
        self.candidates += shards
        self.devices = np.concatenate([self.devices, np.full(len(shards), UNPLACED)])
        self.latents = np.concatenate([self.latents, self._predictor.latents(encoded)])
        self.widths = np.concatenate([self.widths, self._predictor.widths(encoded)])
        return list(range(first, len(self.candidates)))

    def copy(self) -> PlacementState:
        """Return an independent state with the same placement."""
        other = object.__new__(PlacementState)
        other.__dict__.update(self.__dict__)
        other.candidates = list(self.candidates)
        other.devices = self.devices.copy()
        other._counts = self._counts.copy()
        other._sums = self._sums.copy()
        return other

    def add(self, candidate: int, device: int) -> None:
        """Put a candidate on a device.

        Raises:
            InputError: no such candidate or device, or the candidate is on a device already.
        """
        self._check(candidate, device)
        if self.devices[candidate] != UNPLACED:
            raise InputError(f"candidate {candidate} is on device {self.devices[candidate]}: remove it first")
        self.devices[candidate] = device
        self._sums[device] += self.latents[candidate]
        self._counts[device] += 1

    def remove(self, candidate: int) -> None:
        """Take a candidate off its device.

        Raises:
            InputError: no such candidate, or it is on no device.
        """
        self._check(candidate, 0)
        device = int(self.devices[candidate])
        if device == UNPLACED:
            raise InputError(f"candidate {candidate} is on no device")
        self.devices[candidate] = UNPLACED
        self._counts[device] -= 1
        # Summed anew: what subtraction leaves of large latents would drown small ones.
        self._sums[device] = self.latents[self.devices == device].sum(axis=0)

    def what_if(self, candidates: npt.ArrayLike, devices: npt.ArrayLike) -> Floats:
        """Predict compute of devices with one candidate more, for many hypothetical placements in one call.

        Args:
            candidates: numbers, shape (n,).
            devices: where each would go, shape (n,).

        Returns:
            Forward and backward ms of that device with that candidate, shape (n, 2). Nothing is placed.
        """
        sums = self._sums[np.asarray(devices, dtype=np.int64)] + self.latents[np.asarray(candidates, dtype=np.int64)]
        return self._predictor.compute_ms(sums)

    def compute_ms(self) -> Floats:
        """Return forward and backward compute of every device, shape (D, 2); an empty one takes none."""
        return self._predictor.device_ms(self._sums, self._counts)

    def per_device(self) -> Floats:
        """Return all four phases of every device as placed so far, in the order of `PHASES`, shape (D, 4)."""
        placed = self.devices != UNPLACED
        widths = np.zeros(self._task.num_devices)
        np.add.at(widths, self.devices[placed], self.widths[placed])
        phases = self._predictor.per_device_ms(self._number, self._sums[None], self._counts[None], widths[None])
        return np.asarray(phases[0], dtype=np.float64)

    def total(self) -> float:
        """Return what the slowest device takes in ms as placed so far."""
        return float(self.per_device().sum(axis=1).max())

    def totals(self, placements: npt.ArrayLike) -> Floats:
        """Predict many whole placements in one call, whatever is placed here.

        Args:
            placements: device of every candidate, `UNPLACED` for none, shape (P, C).

        Returns:
            What the slowest device takes in ms, shape (P,).
        """
        where = np.asarray(placements, dtype=np.int64)
        shape = len(where), self._task.num_devices
        sums = np.zeros((*shape, ComputeNet.LATENT))
        counts = np.zeros(shape, dtype=np.int64)
        widths = np.zeros(shape)
        for device in range(self._task.num_devices):
            here = (where == device).astype(np.float64)
            sums[:, device] = here @ self.latents
            widths[:, device] = here @ self.widths
            counts[:, device] = here.sum(axis=1)
        phases = self._predictor.per_device_ms(self._number, sums, counts, widths)
        return np.asarray(phases.sum(axis=-1).max(axis=-1), dtype=np.float64)

    def _check(self, candidate: int, device: int) -> None:
        if not 0 <= candidate < len(self.candidates):
            raise InputError(f"candidate {candidate}: there are candidates 0 to {len(self.candidates) - 1}")
        if not 0 <= device < self._task.num_devices:
            raise InputError(f"device {device}: the task has devices 0 to {self._task.num_devices - 1}")


def _plan_batch(predictor: Predictor, task: ShardingTask, plans: Sequence[ShardingPlan]) -> PlanBatch:
    """Return plans of one task as arrays."""
    shards = [shard for plan in plans for shard in plan.shards]
    return PlanBatch(
        task.num_devices,
        counts=np.array([len(plan.shards) for plan in plans], dtype=np.int64),
        shards=predictor.encode(task, shards),
        devices=np.array([shard.device for shard in shards], dtype=np.int64),
    )


def _additive(predictor: Predictor) -> AdditivePredictor:
    if not isinstance(predictor, AdditivePredictor):
        raise InputError("a judge scores whole plans only: begin() needs a simulator with role='oracle'")
    return predictor


def _require_open(role: Role) -> None:
    if role == "judge":
        require_open("the simulator with role='judge'")
