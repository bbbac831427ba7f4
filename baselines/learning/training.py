"""The training loop of learned solvers: steps, validation, a learning curve, and checkpoints that outlive a kill."""

import abc
import dataclasses
import io
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, ShardGymError
from shardgym.files import make_folder, only_writer, write_whole
from shardgym.plans.plan import ShardingPlan
from shardgym.progress import progress_bar
from shardgym.tasks.task import ShardingTask

CHECKPOINT = "checkpoint.pt"
SCHEMA = "shardgym.solver_checkpoint/2"

_LOG = logging.getLogger("shardgym.solvers.fit")


class TrainingError(ShardGymError):
    """Training that cannot go on: a loss or a weight is no number any more."""


class TrainingOracle:
    """Prices plans and counts them; `InputError` where the cost is a judge."""

    def __init__(self, cost: CostModel) -> None:
        if cost.scores_only:
            raise InputError(f"cost '{cost.name}' is a judge, which no solver may be fitted on: give an oracle")
        self.cost = cost
        self.queries = 0

    def price(self, task: ShardingTask, devices: Ints) -> Floats:
        """Return the times of plans that put tables on devices of shape (P, T); see `price_plans`."""
        return self.price_plans(task, [ShardingPlan.table_wise(task, row) for row in devices.tolist()])

    def price_plans(self, task: ShardingTask, plans: list[ShardingPlan]) -> Floats:
        """Return times as `PlanCost.per_device`, infinite for infeasible plans, shape (P, D, 5)."""
        self.queries += len(plans)
        return np.array([cost.per_device for cost in self.cost.evaluate(task, plans)])


class Setup(NamedTuple):
    """What a learner is made with."""

    network: Any  #: to be trained
    tasks: Sequence[ShardingTask]  #: to train on
    oracle: TrainingOracle  #: to be queried; counts
    steps: int  #: of training in all
    settings: Any  #: of the solver


class Learner(abc.ABC):
    """What a solver does in one step of training. A subclass holds all that changes from step to step in these."""

    network: nn.Module  #: what is trained, and saved as the solver's weights
    optimizers: Sequence[torch.optim.Optimizer]  #: of its parameters
    oracle: TrainingOracle  #: counts its queries
    replay: dict[str, Tensor]  #: further tensors that later steps depend on, such as priced plans; any shapes

    def __init__(self, setup: Setup) -> None:
        self.network, self._tasks, self.oracle, self._steps, self._settings = setup
        self.replay = {}

    @abc.abstractmethod
    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Train step `number`, from 0 on, and return figures for the learning curve, such as losses.

        All chance comes from `rng`. Every step has its own, so that a resumed training draws the same.
        """


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, most_gradient: float = math.inf) -> None:
    """Take one step against the gradient of a loss, with this norm at most."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], most_gradient)
    optimizer.step()


def torch_generator(rng: np.random.Generator) -> torch.Generator:
    """Return a generator of torch that is seeded by one of NumPy."""
    return torch.Generator().manual_seed(int(rng.integers(2**63)))


@dataclass
class TrainingLog:
    """How far training is."""

    steps: int = 0  #: done
    seconds: float = 0.0  #: that they took, interruptions left out
    curve: list[dict[str, float]] = field(default_factory=list)  #: one entry per evaluation
    best_step: int = 0  #: step after which validation was best
    best: dict[str, Tensor] = field(default_factory=dict)  #: tensors of the network at that step


@dataclass(frozen=True)
class TrainingOptions:
    """How the loop runs."""

    steps: int  #: to make in all
    seed: int  #: of all chance
    identity: dict[str, Any]  #: besides these, what a checkpoint must have to be gone on from
    evaluate_every: int = 10  #: steps between evaluations, each followed by a checkpoint
    minutes: float | None = None  #: begin no step after so long; None for no limit
    checkpoint_dir: Path | None = None  #: folder of checkpoint and curve; None for none
    resume: bool = False  #: go on from the checkpoint there
    progress: bool = False  #: whether a bar is shown


def train(learner: Learner, validate: Callable[[], dict[str, float]], options: TrainingOptions) -> TrainingLog:
    """Train, and leave the best weights of all evaluations in the learner's network.

    The same learner, steps and seed give the same weights, also when training was killed and resumed. `validate`
    returns figures of the network as it is, the smallest first one being the best. A checkpoint of another identity is
    refused. A loss or a weight that is no number is a `TrainingError`; the last checkpoint stays.
    """
    loop = _Loop(learner, validate, options)
    folder = options.checkpoint_dir
    if folder is None:
        if options.resume:
            raise InputError("resume needs checkpoint_dir, the folder of the training that is to go on")
        return loop.run()
    make_folder(folder)
    with only_writer(folder):
        loop.start(folder / CHECKPOINT)
        return loop.run()


class _Loop:
    def __init__(self, learner: Learner, validate: Callable[[], dict[str, float]], options: TrainingOptions) -> None:
        self._learner = learner
        self._validate = validate
        self._options = options
        self._steps = options.steps
        self._identity = json.loads(json.dumps(options.identity | {"steps": options.steps, "seed": options.seed}))
        self._log = TrainingLog()
        self._path: Path | None = None

    def start(self, path: Path) -> None:
        """Go on from a checkpoint where that is wanted; later ones replace it."""
        self._path = path
        if not path.exists():
            return  # killed before the first checkpoint, or not begun
        if not self._options.resume:
            raise InputError(f"{path} exists: resume that training, or give another folder")
        try:
            state = torch.load(path, weights_only=True)
            other = [name for name, now in self._identity.items() if state["identity"].get(name) != now]
        except (OSError, RuntimeError, EOFError, UnpicklingError, KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged, or no checkpoint of a solver's training: {error!s:.80}") from None
        if other or state["schema"] != SCHEMA:
            raise InputError(
                f"{path}: a checkpoint of a training with other {', '.join(other) or 'schema'}: give what it was "
                "started with, or another folder"
            )
        learner = self._learner
        learner.network.load_state_dict(state["network"])
        for optimizer, kept in zip(learner.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        learner.replay = state["replay"]
        learner.oracle.queries = state["queries"]
        self._log = TrainingLog(**state["log"])

    def _save(self) -> None:
        if self._path is None:
            return
        learner = self._learner
        state = {
            "schema": SCHEMA,
            "identity": self._identity,
            "network": learner.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in learner.optimizers],
            "replay": learner.replay,
            "queries": learner.oracle.queries,
            "log": dataclasses.asdict(self._log),
        }
        data = io.BytesIO()
        torch.save(state, data)
        write_whole(self._path, data.getvalue())

    def run(self) -> TrainingLog:
        log = self._log
        before = log.seconds
        started = time.monotonic()
        figures: dict[str, float] = {}
        with progress_bar(
            shown=self._options.progress, total=self._steps, initial=log.steps, unit="step", desc="training"
        ) as bar:
            if not log.curve:
                self._evaluate({})
            while log.steps < self._steps and not self._is_late():
                figures = self._learner.step(log.steps, np.random.default_rng([self._options.seed, log.steps]))
                log.steps += 1
                self._check_numbers(figures)
                log.seconds = before + time.monotonic() - started
                bar.update()
                if log.steps % self._options.evaluate_every == 0 or log.steps == self._steps or self._is_late():
                    self._evaluate(figures)
                    log.seconds = before + time.monotonic() - started
                    self._save()
                    bar.set_postfix_str(f"validation {min(entry['validation_ms'] for entry in log.curve):.3f} ms")
        self._learner.network.load_state_dict(log.best)
        return log

    def _is_late(self) -> bool:
        return self._options.minutes is not None and self._log.seconds >= 60 * self._options.minutes

    def _evaluate(self, figures: dict[str, float]) -> None:
        log = self._log
        found = self._validate()
        key = next(iter(found))
        if not log.best or found[key] < min(entry[key] for entry in log.curve):
            log.best_step = log.steps
            log.best = {name: value.detach().clone() for name, value in self._learner.network.state_dict().items()}
        entry = {"step": log.steps, "minutes": round(log.seconds / 60, 3), **found, **figures}
        log.curve.append({k: v if isinstance(v, int) else float(f"{v:.6g}") for k, v in entry.items()})
        _LOG.info("step %d of %d: %s", log.steps, self._steps, ", ".join(f"{k} {v:.4g}" for k, v in found.items()))

    def _check_numbers(self, figures: dict[str, float]) -> None:
        """Stop when a figure or a weight is not finite."""
        wrong = [f"{name} is {value}" for name, value in figures.items() if not math.isfinite(value)]
        for name, value in self._learner.network.state_dict().items():
            if not wrong and not bool(torch.isfinite(value).all()):
                wrong.append(f"weight '{name}' is not finite")
        if not wrong:
            return
        kept = "nothing was kept: no checkpoint_dir was given"
        if self._path is not None:
            kept = f"{self._path} holds the last good step" if self._path.exists() else "there is no checkpoint yet"
        raise TrainingError(
            f"training stopped at step {self._log.steps}: {wrong[0]}; {kept}; try a lower learning_rate"
        )
