"""SimulatorCost: the learned cost model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.costs.shard_keys import PlanBatch
from shardgym.costs.simulator.predictor import AdditivePredictor, Predictor, task_notes
from shardgym.costs.simulator.weights import ROLES, Role, find_weights, load_weights
from shardgym.errors import InputError, UnknownNameError
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Tasks whose encoded shards are kept; solvers and environments return to the same few.
_TASKS_KEPT = 64


class SimulatorCost(CostModel):
    """Predicts plans with a network that was trained once on measurements. Runs on NumPy alone.

    Weights that were trained on complete steps predict such steps: the work of devices, and exchanges over the task's
    links by the link model of the measured cost (`shardgym.costs.link_model`). Those of kernels alone, as collected on
    a GPU, predict compute; exchanges are then latencies and bytes over bandwidth. A plan gets a note when what a device
    holds is unlike the training data, or when devices or links are of another kind.

    Example:
        >>> cost = make_cost("simulator", weights="model")                 # doctest: +SKIP
        >>> cost.evaluate(task, [plan])[0].total_ms                        # doctest: +SKIP

    Args:
        weights: a folder written by `shardgym pretrain`, or one of its `.safetensors` files; those that
            ship with the package when None.
        role: "oracle", or "judge" for the second simulator, which learned from other measurements.
        hardware: tag that the weights must have.

    Raises:
        InputError: there are no such weights, or they are damaged or of another schema, role or hardware.
    """

    name: ClassVar[str] = "simulator"
    deterministic: ClassVar[bool] = True
    learned: ClassVar[bool] = True

    def __init__(self, weights: str | Path | None = None, role: Role = "oracle", hardware: str | None = None) -> None:
        if role not in ROLES:
            raise UnknownNameError("role of a simulator", str(role), ROLES)
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
        """Tag of the machine whose times are predicted."""
        return self._weights.hardware

    @property
    def scores_only(self) -> bool:
        """Whether this is a judge."""
        return self.role == "judge"

    @property
    def role(self) -> Role:
        """Whether this is an oracle or a judge."""
        return self._weights.role

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return {k: v for k, v in self._settings.items() if v is not None and (k, v) != ("role", "oracle")}

    def predictor(self) -> AdditivePredictor:
        """Return a predictor that knows no task yet, for searches and environments; judges have none."""
        if self.role == "judge":
            raise InputError("a judge scores whole plans only: predictor() needs a simulator with role='oracle'")
        return AdditivePredictor(self._weights)

    def additive(self) -> AdditivePredictor | None:
        """See `CostModel`; a judge offers none."""
        return self.predictor() if self.role == "oracle" else None

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        # It encodes a task once; after many tasks, a new one replaces it.
        if self._predictor is None or self._predictor.num_tasks > _TASKS_KEPT:
            self._predictor = Predictor(self._weights)
        predictor = self._predictor
        return predictor.plan_costs(predictor.batch(task, plans))

    def plan_costs(self, costs: AdditiveCosts, batch: PlanBatch) -> list[PlanCost]:
        """See `CostModel`; notes say what is unlike the training data."""
        assert isinstance(costs, AdditivePredictor), "from additive()"
        return costs.plan_costs(batch)

    def notes(self, task: ShardingTask) -> tuple[str, ...]:
        """See `CostModel`; of single plans, costs say more."""
        return task_notes(self._weights, task)

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:  # noqa: ARG002
        return "predicted", "modelled"
