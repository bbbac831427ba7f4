"""GroupLearner: a policy first imitates plans of another solver, then learns from groups of episodes of one task.

Each step of the second phase plays several tasks, each in many episodes. An episode's advantage is relative to the
other episodes of its task, so that no critic is needed (Kwon et al., "POMO", NeurIPS 2020; Shao et al., "DeepSeekMath",
arXiv:2402.03300). Updates are clipped as in PPO (arXiv:1707.06347).

Imitation comes first because halving pays only once a policy places well: a random policy would unlearn it.
"""

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from baselines.learning.solver import Count, Positive
from baselines.learning.training import Learner, Setup, descend
from baselines.ppo.episode import ORDER, Decisions, Episodes
from baselines.ppo.set_network import SetNetwork, observations_of
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.evaluation.solver import Solver
from shardgym.records import CONFIG, Record, Whole

#: How far an update may change the probability of an action, as in PPO.
_CLIP = 0.2
#: An episode without a plan is as good as a plan that costs e to the power of this times the worst one of its task.
_STUCK = 0.3
#: Keeps advantages small where all episodes of a task are nearly alike.
_LEAST_SPREAD = 1e-3
_MAX_GRADIENT = 1.0


@dataclass(frozen=True, config=CONFIG)
class GroupSettings(Record):
    """Training settings of `ppo_columns`."""

    imitation_steps: Count = 40  #: number of first steps, which imitate plans of another solver
    imitation_updates: Count = 25  #: updates per imitation step
    imitated: Count = 1024  #: imitated decisions per update
    imitation_rate: Positive = 1e-3  #: learning rate of imitation steps
    tasks: Count = 16  #: tasks played per later step, all with equally many devices
    episodes: Annotated[Whole, Field(ge=2)] = 32  #: episodes per task
    decisions: Count = 2048  #: maximum number of decisions per update
    learning_rate: Positive = 5e-4  #: learning rate of later steps; falls linearly to 0


class GroupLearner(Learner):
    """Trains a `SetNetwork` by imitation, then by groups of episodes. Only network and optimiser outlive a step.

    Every placement of a played episode counts as a query; queries of the imitated teacher do not.
    """

    network: SetNetwork

    def __init__(self, setup: Setup, teacher: Solver, **rules: Any) -> None:
        super().__init__(setup)
        settings: GroupSettings = setup.settings
        if settings.imitation_steps >= setup.steps:
            raise InputError(
                f"steps: all {setup.steps} would imitate: give more steps, or fewer imitation_steps than "
                f"{settings.imitation_steps}"
            )
        self.network.halves.fill_(True)
        self.optimizers = (torch.optim.Adam(self.network.parameters(), lr=settings.imitation_rate),)
        self._episodes = [Episodes(task, setup.oracle.cost, ORDER, settings.episodes, **rules) for task in setup.tasks]
        self._teacher = teacher
        #: Positions of the tasks, and decisions of the plans that are imitated, by number of devices.
        self._alike: dict[int, list[int]] = {}
        for position, task in enumerate(setup.tasks):
            self._alike.setdefault(task.num_devices, []).append(position)
        self._examples: dict[int, Decisions] = {}

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Imitate the teacher, or play episodes and learn from them."""
        # Numbers of devices take turns.
        alike = sorted(self._alike)
        devices = alike[number % len(alike)]
        done = number - self._settings.imitation_steps
        if done < 0:
            return self._imitate(devices, rng)
        share = done / (self._steps - self._settings.imitation_steps)
        self.optimizers[0].param_groups[0]["lr"] = self._settings.learning_rate * (1 - share)
        return self._compete(devices, rng)

    def _imitate(self, devices: int, rng: np.random.Generator) -> dict[str, float]:
        examples = self._examples_of(devices)
        self.optimizers[0].param_groups[0]["lr"] = self._settings.imitation_rate
        losses = []
        for _ in range(self._settings.imitation_updates):
            rows = rng.integers(len(examples.chosen), size=self._settings.imitated)
            picked = Decisions._make(part[rows] for part in examples)
            loss = nn.functional.cross_entropy(self._logits(picked), torch.from_numpy(picked.chosen))
            descend(self.optimizers[0], loss, _MAX_GRADIENT)
            losses.append(loss.item())
        return {"imitation_loss": float(np.mean(losses))}

    def _examples_of(self, devices: int) -> Decisions:
        """Return the decisions that lead to the teacher's plans of all tasks with so many devices."""
        if devices not in self._examples:
            found: list[Decisions] = []
            for position in self._alike[devices]:
                with contextlib.suppress(NoFeasiblePlanError):
                    plan = self._teacher.solve(self._tasks[position], self.oracle.cost)
                    found += self._episodes[position].follow(plan)
            if not found:
                raise InputError(
                    f"{type(self._teacher).__name__} has no plan that actions of the environment can make for tasks of "
                    f"{devices} devices: nothing to imitate"
                )
            self._examples[devices] = _joined(found)
        return self._examples[devices]

    def _compete(self, devices: int, rng: np.random.Generator) -> dict[str, float]:
        settings = self._settings
        positions = self._alike[devices]
        parts = []
        gained = []
        costs = []
        stuck = 0
        for position in rng.permutation(positions)[: settings.tasks].tolist():
            played = self._episodes[position].play(self.network, settings.episodes, rng, keep=True)
            self.oracle.queries += sum(len(part.chosen) for part in played.decisions)
            known = np.isfinite(played.step_ms)
            stuck += int(np.count_nonzero(~known))
            if not known.any():
                continue
            logs = np.log(np.where(known, played.step_ms, 1.0))
            logs[~known] = logs[known].max() + _STUCK
            better = (logs.mean() - logs) / (logs.std() + _LEAST_SPREAD)
            decisions = _joined(played.decisions)
            parts.append(decisions)
            gained.append(better[decisions.episodes])
            costs.append(logs.mean() - logs.min())
        if not parts:
            return {"stuck": float(stuck)}
        decisions = _joined(parts)
        advantages = torch.from_numpy(np.concatenate(gained)).float()
        before = _log_probabilities(torch.from_numpy(decisions.scores), torch.from_numpy(decisions.chosen)).float()
        count = len(advantages)
        updates = -(-count // settings.decisions)
        for rows in np.array_split(rng.permutation(count), updates):
            picked = Decisions._make(part[rows] for part in decisions)
            now = _log_probabilities(self._logits(picked), torch.from_numpy(picked.chosen))
            ratio = (now - before[rows]).exp()
            limited = ratio.clamp(1 - _CLIP, 1 + _CLIP)
            gained_most = torch.minimum(ratio * advantages[rows], limited * advantages[rows])
            descend(self.optimizers[0], -gained_most.mean(), _MAX_GRADIENT)
        return {"spread": float(np.mean(costs)), "stuck": float(stuck)}

    def _logits(self, decisions: Decisions) -> Tensor:
        scores = self.network.scores(observations_of(decisions.table, decisions.devices, decisions.rest))
        return scores.masked_fill(~torch.from_numpy(decisions.valid), -torch.inf)


def _joined(decisions: Sequence[Decisions]) -> Decisions:
    return Decisions._make(np.concatenate(parts) for parts in zip(*decisions, strict=True))


def _log_probabilities(scores: Tensor, chosen: Tensor) -> Tensor:
    return scores.log_softmax(dim=1).gather(1, chosen[:, None])[:, 0]
