"""LearnedSolver: the base class of solvers that are fitted before they solve."""

import abc
import contextlib
import copy
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import nn

from baselines.learning.encoder import FEATURES, FeatureScale
from baselines.learning.training import Learner, Setup, TrainingOptions, TrainingOracle, train
from baselines.learning.weights import (
    Shipped,
    SolverCard,
    TaskSummary,
    choose_shipped,
    digest_of,
    load_card,
    load_network,
    save_network,
    shipped_weights,
)
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError, check_instance, check_int
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.machine import utc_now, versions
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.records import Record, Whole, sha256
from shardgym.tasks.task import ShardingTask
from shardgym.training.fitting import one_thread

NetworkT = TypeVar("NetworkT", bound=nn.Module)

Count = Annotated[Whole, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]

#: One task in so many is kept for validation if no validation tasks are given.
VALIDATION_SHARE = 10


@dataclasses.dataclass(frozen=True)
class Fitted(Generic[NetworkT]):
    """A network with weights, and the card that says where they come from."""

    network: NetworkT
    card: SolverCard

    @functools.cached_property
    def deciding(self) -> NetworkT:
        """The same network in double precision; see `_deciding`."""
        return copy.deepcopy(self.network).double()


@contextlib.contextmanager
def _deciding() -> Iterator[None]:
    """Let networks decide: without gradients, on one thread, and in double precision."""
    # In single precision, processors round the seventh digit differently, which is too much for ties.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with one_thread(), torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)


class LearnedSolver(abc.ABC, Generic[NetworkT]):
    """A solver that is fitted on tasks with an oracle, then solves other tasks.

    A subclass defines its network (`network_type`), how it learns (`learner_type`), and how a network makes a plan
    (`place`). This class provides fitting with validation, checkpoints, files, shipped weights and checks of arguments.

    Args:
        weights: folder that `save` or `shardgym fit` wrote. When None, `choose_shipped` picks shipped weights for each
            task. `fit` needs no weights.
        **settings: training settings, the fields of `settings_type`.

    Raises:
        InputError: an unknown setting, a setting that differs from the weights' training, or weights that are missing,
            damaged or of another solver or architecture.
    """

    name: ClassVar[str]  #: registered name, also that of the shipped weights
    settings_type: ClassVar[type[Record]]  #: record of the training settings, all with defaults
    network_type: ClassVar[type[Any]]  #: class of the network, built with a `FeatureScale`
    learner_type: ClassVar[type[Learner]]  #: class of the learner, built with a `Setup`
    default_steps: ClassVar[int]  #: number of training steps
    #: Settings that also matter when solving. Given with weights, the others must equal those of the weights' training.
    solving_settings: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, weights: str | Path | None = None, **settings: Any) -> None:
        self.settings = self.settings_type.from_dict(settings, f"solver '{self.name}'")
        self._training_settings = sorted(settings.keys() - self.solving_settings)
        self.weights = None if weights is None else str(weights)
        self._own = None if weights is None else self._read(weights)
        self._shipped: dict[Path, Fitted[NetworkT]] = {}  # those of the package that were loaded
        self._used: Fitted[NetworkT] | None = self._own

    def build_network(self, scale: FeatureScale) -> NetworkT:
        """Return an untrained network. Its weights come from torch's global generator, which `fit` seeds."""
        network: NetworkT = self.network_type(scale)
        return network

    def make_learner(self, setup: Setup) -> Learner:
        """Return the learner that trains a network."""
        return self.learner_type(setup)

    @abc.abstractmethod
    def place(self, network: NetworkT, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return a plan; called with one thread and without gradients unless the subclass enables them.

        The network and torch's default dtype are double precision. Quantize what decides (`shardgym.costs.ties`).

        Raises:
            NoFeasiblePlanError: no action is left that respects memory.
        """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan, see `Solver`; among shipped weights, `seed` chooses the training seed."""
        check_solve_arguments(task, cost, seed)
        self._used = self._own
        if self._used is None:
            self._used = self._load_shipped(choose_shipped(self._shipped_index, task.num_devices, int(seed)))
        check_possible(task)
        with _deciding():
            return self.place(self._used.deciding, task, cost, int(seed))

    def check_ready(self, cost: CostModel) -> None:
        """Load all weights that a task may need.

        Raises:
            InputError: there are no weights, or the shipped weights were trained with other settings.
        """
        del cost
        if self._own is None:
            for shipped in self._shipped_index.values():
                for folder in shipped.seeds:
                    self._load_shipped(folder)

    @property
    def weights_digest(self) -> str | None:
        """SHA-256 of the weights that were loaded, fitted, or used by the latest `solve`; None without weights."""
        return None if self._used is None else self._used.card.weights_sha256

    @property
    def training_time_s(self) -> float | None:
        """Training time of these weights in seconds; None without weights."""
        return None if self._used is None else 60.0 * (self._used.card.minutes or 0.0)

    @property
    def card(self) -> SolverCard | None:
        """Card of these weights; None without weights."""
        return None if self._used is None else self._used.card

    def fit(
        self,
        tasks: Sequence[ShardingTask],
        cost: CostModel,
        seed: int = 0,
        *,
        validation: Sequence[ShardingTask] | None = None,
        steps: int | None = None,
        minutes: float | None = None,
        evaluate_every: int | None = None,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        progress: bool = False,
        source: str = "",
    ) -> Self:
        """Train on tasks, and use the trained weights from now on.

        Equal tasks, cost, seed, settings and steps give equal weights on the same machine and versions, even if
        training is killed and resumed.

        Args:
            tasks: training tasks, from the train half of a pool.
            cost: the oracle.
            seed: seed of all randomness.
            validation: tasks that choose the best weights; every tenth of `tasks` when None.
            steps: training steps; `default_steps` when None.
            minutes: time limit, after which no step starts.
            evaluate_every: steps between evaluations, each followed by a checkpoint; a twentieth of `steps` when None.
            checkpoint_dir: folder for checkpoints.
            resume: whether to resume from the checkpoint in this folder, if there is one.
            progress: whether to show a progress bar on standard error.
            source: origin of the tasks, for the card.

        Raises:
            InputError: invalid arguments, or a checkpoint of another training.
            TrainingError: a loss or a weight is not finite.
        """
        if self.weights is not None:
            raise InputError("training starts from random weights: leave out weights=")
        check_instance("cost", cost, CostModel)
        check_int("seed", seed)
        steps = self.default_steps if steps is None else check_int("steps", steps, 1)
        every = max(1, steps // 20) if evaluate_every is None else check_int("evaluate_every", evaluate_every, 1)
        learned, held_out = _split(tasks, validation)
        oracle = TrainingOracle(cost)
        scale = FeatureScale.of(learned)
        with one_thread():
            network = self._untrained(scale, int(seed))
            with torch.enable_grad():
                learner = self.make_learner(Setup(network, learned, oracle, steps, self.settings))
                summary = summarise(learned, source)
                identity = {
                    "solver": self.name,
                    **{f"setting {name}": value for name, value in self.settings.to_dict().items()},
                    "tasks": summary.to_dict(),
                    "validation": summarise(held_out, source).to_dict(),
                    "oracle": f"{cost.name} {cost.version} {cost.hardware}",
                }
                folder = None if checkpoint_dir is None else Path(checkpoint_dir)
                options = TrainingOptions(steps, int(seed), identity, every, minutes, folder, resume, progress)
                log = train(learner, lambda: self._validate(network, held_out, oracle, int(seed)), options)
        card = SolverCard(
            solver=self.name,
            settings=self.settings.to_dict(),
            features={name: (float(scale.mean[i]), float(scale.std[i])) for i, name in enumerate(FEATURES)},
            tasks=summary,
            validation=summarise(held_out, source),
            oracle={
                "name": cost.name, "version": cost.version, "hardware": cost.hardware, "settings": cost.settings()
            },
            oracle_queries=oracle.queries,
            seed=int(seed),
            steps=log.steps,
            best_step=log.best_step,
            minutes=round(log.seconds / 60, 2),
            curve=log.curve,
            created=utc_now(),
            versions=versions(),
            weights_sha256=digest_of(network),
        )  # fmt: skip
        self._own = self._used = Fitted(network, card)
        return self

    def save(self, folder: str | Path) -> None:
        """Write weights and card into a folder, which is created if needed.

        Raises:
            InputError: the solver has no weights, or the folder cannot be written.
        """
        if self._own is None:
            raise InputError(f"solver '{self.name}' has no weights to save: call fit(tasks, cost) first")
        save_network(Path(folder), self._own.network, self._own.card)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return a solver with the weights of a folder; raises `InputError` if they are missing or damaged."""
        return cls(weights=folder)

    @functools.cached_property
    def _shipped_index(self) -> dict[str, Shipped]:
        """Weights of the package; `InputError` when there are none."""
        shipped = shipped_weights(self.name)
        if not shipped:
            raise InputError(f"no weights of solver '{self.name}' ship with this version: {self._how_to_fit()}")
        return shipped

    def _load_shipped(self, folder: Path) -> Fitted[NetworkT]:
        if folder not in self._shipped:
            self._shipped[folder] = self._read(folder)
        return self._shipped[folder]

    def _how_to_fit(self) -> str:
        """Return the command that fits weights with the settings of this solver."""
        given = "".join(f",{name}={getattr(self.settings, name)}" for name in self._training_settings)
        return f"run 'shardgym fit {self.name}{given} --suite SUITE --out FOLDER' and give weights=FOLDER"

    def _read(self, folder: str | Path) -> Fitted[NetworkT]:
        card = load_card(folder, self.name)
        for name in self._training_settings:
            value = getattr(self.settings, name)
            if value != card.settings.get(name):
                those = "these weights"
                if self.weights is None:
                    those = f"the weights that ship ({', '.join(self._shipped_index)})"
                raise InputError(
                    f"solver '{self.name}': {name}={value} is a setting of training; {those} were trained with "
                    f"{name}={card.settings.get(name)}: leave it out, or {self._how_to_fit()}"
                )
        network = self._untrained(FeatureScale.identity(), 0)
        load_network(folder, card, network)
        return Fitted(network, card)

    def _untrained(self, scale: FeatureScale, seed: int) -> NetworkT:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build_network(scale)

    def _validate(
        self, network: NetworkT, tasks: Sequence[ShardingTask], oracle: TrainingOracle, seed: int
    ) -> dict[str, float]:
        """Return the geometric mean cost of the validation tasks, and the share of tasks without a plan."""
        logs = []
        with _deciding():
            deciding = copy.deepcopy(network).double()
            for task in tasks:
                try:
                    plan = self.place(deciding, task, oracle.cost, seed)
                except NoFeasiblePlanError:
                    continue
                logs.append(math.log(oracle.price_plans(task, [plan])[0].sum(axis=1).max()))
        # A task without a plan counts as ten times the mean, so that weights which solve more tasks are better.
        failed = 1 - len(logs) / len(tasks)
        mean = float(np.mean(logs)) if logs else math.log(1e6)
        return {"validation_ms": math.exp(mean + failed * math.log(10)), "validation_failed": failed}


def summarise(tasks: Sequence[ShardingTask], source: str) -> TaskSummary:
    """Summarise tasks for a card."""
    tables = [task.num_tables for task in tasks]
    devices = [task.num_devices for task in tasks]
    return TaskSummary(
        source=source,
        count=len(tasks),
        sha256=sha256("".join(task.digest for task in tasks)),
        num_tables=(min(tables), max(tables)),
        num_devices=(min(devices), max(devices)),
    )


def _split(
    tasks: Sequence[ShardingTask], validation: Sequence[ShardingTask] | None
) -> tuple[list[ShardingTask], list[ShardingTask]]:
    """Split tasks for training and validation; a single task serves as both."""
    learned = list(tasks)
    if not learned:
        raise InputError("tasks: expected at least one task to fit on, got none")
    if validation is not None:
        return learned, list(validation) or learned
    held_out = learned[::VALIDATION_SHARE]
    rest = [task for i, task in enumerate(learned) if i % VALIDATION_SHARE]
    return (rest, held_out) if rest else (learned, learned)
