"""SimulatorCost: the learned cost model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from shardgym.arguments import check_instance, check_list_of
from shardgym.costs.base import ONE_PLAN, CostModel
from shardgym.costs.judge_guard import require_open
from shardgym.costs.links import link_notes
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.costs.simulator.encoding import EncodedShards
from shardgym.costs.simulator.familiarity import Familiarity
from shardgym.costs.simulator.placement import PlacementState
from shardgym.costs.simulator.prediction import predict
from shardgym.costs.simulator.predictors import OraclePredictor, predictor_of
from shardgym.costs.simulator.shipped import find_weights
from shardgym.costs.simulator.weights import ROLES, Role, load_weights
from shardgym.errors import InputError, UnknownNameError
from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ShardingTask

#: Tasks whose encoded shards are kept; solvers and environments return to the same few.
_TASKS_KEPT = 64


class SimulatorCost(CostModel):
    """Predicts plans with networks that were trained once on measurements.

    Predictions are composed as NeuroShard does (`simulator.py` there): backward communication from the
    devices' widths, start offsets from compute plus backward communication, forward communication with
    these offsets. Weights from a machine that could not measure exchanges, such as one with a single GPU,
    predict compute alone; communication is then modelled by the task's topology, and `PlanCost` says so. A
    plan that leaves the range of the training data, or on which the ensemble disagrees, gets a note, and so do
    predicted exchanges of a task that names links of its own. Runs on NumPy alone.

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
        _require_role(role)
        self._settings = {"weights": None if weights is None else str(weights), "role": role, "hardware": hardware}
        self._weights = load_weights(find_weights(weights, role, hardware), role, hardware)
        self._predictor = predictor_of(self._weights)
        self._encoded: dict[str, EncodedShards] = {}

    @property
    def version(self) -> str:  # type: ignore[override]
        """Digest of the weights, shortened."""
        return f"1-{self._weights.digest[:12]}"

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
        if not isinstance(self._predictor, OraclePredictor):
            raise InputError("a judge scores whole plans only: begin() needs a simulator with role='oracle'")
        whole = [Shard.whole(table, 0) for table in task.tables]
        candidates = whole if shards is None else check_list_of("shards", shards, Shard)
        return PlacementState(task, self._predictor, self._shards_of(task), candidates)

    def familiarity(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[Familiarity]:
        """Say for each feasible plan how far it is from the training data.

        Raises:
            InputError: the task is of a kind that the weights were not trained on, or these are no task and plans.
            InfeasiblePlanError: a plan is infeasible.
        """
        _require_role(self.role)
        check_instance("task", task, ShardingTask)
        plans = check_list_of("plans", plans, ShardingPlan, ONE_PLAN)
        for plan in plans:
            plan.validate(task)
        if not plans:
            return []
        return predict(self._predictor, self._weights, self._shards_of(task), task, plans).familiarity

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        _require_role(self.role)
        predicted = predict(self._predictor, self._weights, self._shards_of(task), task, plans)
        sources, links = self._sources(task), self._link_notes(task)
        return [
            PlanCost(
                per_device, self.name, self.version, self.hardware, *sources, notes=near.notes() + links
            )
            for per_device, near in zip(predicted.per_device, predicted.familiarity, strict=True)
        ]  # fmt: skip

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:  # noqa: ARG002
        return "predicted", "predicted" if self.predicts_exchanges else "modelled"

    def _link_notes(self, task: ShardingTask) -> tuple[str, ...]:
        return link_notes(task, self._sources(task)[1], self.hardware)

    def _shards_of(self, task: ShardingTask) -> EncodedShards:
        self._require_kind(task)
        if task.digest not in self._encoded:
            if len(self._encoded) >= _TASKS_KEPT:
                self._encoded.pop(next(iter(self._encoded)))
            self._encoded[task.digest] = EncodedShards(task, self._predictor.encode)
        return self._encoded[task.digest]

    def _require_kind(self, task: ShardingTask) -> None:
        """Refuse what no feature describes by degrees."""
        for field, value, known in (
            ("precision", task.precision, self._weights.precisions),
            ("optimizer", task.optimizer, self._weights.optimizers),
        ):
            if value not in known:
                raise InputError(
                    f"the simulator was not trained on {field} '{value}': its weights know {', '.join(known)}; "
                    "collect samples of it and pretrain, or use cost 'fbgemm' or 'roofline'"
                )


def _require_role(role: Role) -> None:
    if role == "judge":
        require_open("the simulator with role='judge'")
