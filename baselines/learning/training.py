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
from shardgym.costs.plan_cost import PHASES
from shardgym.errors import InputError, ShardGymError
from shardgym.files import make_folder, only_writer, write_whole
from shardgym.plans.plan import ShardingPlan
from shardgym.progress import progress_bar
from shardgym.tasks.task import ShardingTask

CHECKPOINT = "checkpoint.pt"
SCHEMA = "shardgym.solver_checkpoint/2"

_LOG = logging.getLogger("shardgym.solvers.fit")


class TrainingError(ShardGymError):
    """Training cannot continue: a loss or a weight is not finite."""


class TrainingOracle:
    """Prices plans and counts them; raises `InputError` if the cost is a judge."""

    def __init__(self, cost: CostModel) -> None:
        if cost.scores_only:
            raise InputError(f"cost '{cost.name}' is a judge, on which solvers must not be fitted: give an oracle")
        self.cost = cost
        self.queries = 0

    def price(self, task: ShardingTask, devices: Ints) -> Floats:
        """Price table-wise plans, given the device of each table, shape (P, T); see `price_plans`."""
        return self.price_plans(task, [ShardingPlan.table_wise(task, row) for row in devices.tolist()])

    def price_plans(self, task: ShardingTask, plans: list[ShardingPlan]) -> Floats:
        """Return times as in `PlanCost.per_device`, infinite for infeasible plans, shape (P, D, 5).

        The exchange of ids takes 0 where it is hidden, so that phases add up to what counts.
        """
        self.queries += len(plans)
        costs = self.cost.evaluate(task, plans)
        found = np.array([cost.per_device for cost in costs])
        found[[cost.ids_hidden for cost in costs], :, PHASES.index("ids")] = 0.0
        return found


class Setup(NamedTuple):
    """Arguments of a learner."""

    network: Any  #: network to train
    tasks: Sequence[ShardingTask]  #: training tasks
    oracle: TrainingOracle  #: oracle that counts its queries
    steps: int  #: total number of training steps
    settings: Any  #: settings of the solver


class Learner(abc.ABC):
    """One step of a solver's training. Subclasses keep all state that changes between steps in these attributes."""

    network: nn.Module  #: network to train, saved as the solver's weights
    optimizers: Sequence[torch.optim.Optimizer]  #: optimisers of its parameters
    oracle: TrainingOracle  #: oracle that counts its queries
    replay: dict[str, Tensor]  #: further tensors that later steps depend on, such as priced plans; any shapes

    def __init__(self, setup: Setup) -> None:
        self.network, self._tasks, self.oracle, self._steps, self._settings = setup
        self.replay = {}

    @abc.abstractmethod
    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Make training step `number`, counted from 0, and return figures for the learning curve, such as losses.

        All randomness comes from `rng`; every step has its own, so that a resumed training draws the same numbers.
        """


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, most_gradient: float = math.inf) -> None:
    """Take one gradient step, with the gradient's norm clipped at `most_gradient`."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], most_gradient)
    optimizer.step()


def torch_generator(rng: np.random.Generator) -> torch.Generator:
    """Return a torch generator seeded from a NumPy one."""
    return torch.Generator().manual_seed(int(rng.integers(2**63)))


@dataclass
class TrainingLog:
    """The progress of a training."""

    steps: int = 0  #: steps done
    seconds: float = 0.0  #: training time, without interruptions
    curve: list[dict[str, float]] = field(default_factory=list)  #: one entry per evaluation
    best_step: int = 0  #: step after which validation was best
    best: dict[str, Tensor] = field(default_factory=dict)  #: tensors of the network at that step


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training loop."""

    steps: int  #: total number of steps
    seed: int  #: seed of all randomness
    identity: dict[str, Any]  #: what else a checkpoint must equal to be resumed
    evaluate_every: int  #: steps between evaluations, each followed by a checkpoint
    minutes: float | None  #: time limit, after which no step starts
    checkpoint_dir: Path | None  #: folder of checkpoint and curve
    resume: bool  #: whether to resume from the checkpoint in this folder
    progress: bool  #: whether to show a progress bar


def train(learner: Learner, validate: Callable[[], dict[str, float]], options: TrainingOptions) -> TrainingLog:
    """Train, and leave the best weights of all evaluations in the learner's network.

    Equal learners, steps and seeds give equal weights, even if training is killed and resumed. `validate` returns
    figures of the current network; the first one is minimised.

    Raises:
        InputError: the checkpoint is of another training.
        TrainingError: a loss or a weight is not finite; the last checkpoint remains.
    """
    loop = _Loop(learner, validate, options)
    folder = options.checkpoint_dir
    if folder is None:
        if options.resume:
            raise InputError("resume needs checkpoint_dir, the folder of the training to resume")
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
        """Resume from a checkpoint if asked to; later checkpoints replace it."""
        self._path = path
        if not path.exists():
            if self._options.resume:  # killed before the first checkpoint, or another folder was meant
                _LOG.warning("there is no %s: training starts at step 0", path)
            return
        if not self._options.resume:
            raise InputError(f"{path} exists: resume that training, or give another folder")
        try:
            state = torch.load(path, weights_only=True)
            before = state["identity"]
            different = {name: now for name, now in self._identity.items() if before.get(name) != now}
        except (OSError, RuntimeError, EOFError, UnpicklingError, KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged, or no checkpoint of a solver's training: {error!s:.80}") from None
        if different or state["schema"] != SCHEMA:
            other = [k if isinstance(v, dict) else f"{k} ({before.get(k)}, not {v})" for k, v in different.items()]
            named = ", ".join(other) or "schema"
            raise InputError(f"{path} is from a training with other {named}: give the same, or another folder")
        learner = self._learner
        learner.network.load_state_dict(state["network"])
        for optimizer, kept in zip(learner.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        learner.replay = state["replay"]
        learner.oracle.queries = state["queries"]
        self._log = TrainingLog(**state["log"])
        _LOG.info("resuming at step %d of %d from %s", self._log.steps, self._steps, path)

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
        started = time.monotonic() - log.seconds
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
                log.seconds = time.monotonic() - started
                bar.update()
                if log.steps % self._options.evaluate_every == 0 or log.steps == self._steps or self._is_late():
                    self._evaluate(figures)
                    log.seconds = time.monotonic() - started
                    self._save()
                    bar.set_postfix_str(f"validation {min(entry['validation_ms'] for entry in log.curve):.3f} ms")
        if log.steps < self._steps:
            _LOG.warning("stopped at step %d of %d: time is over; resume with more minutes", log.steps, self._steps)
        self._learner.network.load_state_dict(log.best)
        return log

    def _is_late(self) -> bool:
        return self._options.minutes is not None and self._log.seconds >= 60 * self._options.minutes

    def _evaluate(self, figures: dict[str, float]) -> None:
        log = self._log
        found = self._validate()
        key = next(iter(found))
        named = {"step": log.steps, "minutes": round(log.seconds / 60, 3), **found, **figures}
        entry = {k: v if isinstance(v, int) else float(f"{v:.6g}") for k, v in named.items()}
        if not log.best or entry[key] < min(earlier[key] for earlier in log.curve):
            log.best_step = log.steps
            log.best = {name: value.detach().clone() for name, value in self._learner.network.state_dict().items()}
        log.curve.append(entry)
        _LOG.info("step %d of %d: %s", log.steps, self._steps, ", ".join(f"{k} {v:.4g}" for k, v in found.items()))

    def _check_numbers(self, figures: dict[str, float]) -> None:
        """Raise `TrainingError` if a figure or a weight is not finite."""
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
