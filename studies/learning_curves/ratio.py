"""What plans of `ppo_columns` cost over the reference of their task while it is trained.

    python studies/learning_curves/ratio.py [--suite dlrm4-v2 --suite tight8-v2] [--steps 160] [--tasks 600]
        [--csv studies/learning_curves/ratio.csv] [--plot studies/learning_curves/ratio.png]

The solver is fitted as `shardgym fit` does it, with the simulator as the oracle. The ratio is the mean over all
complete episodes of a step, those of imitation left out: 1 is as good as LPT with halving where memory is unlimited
(`shardgym.envs.reference`). They are drawn from the policy that learns, so exploration is in it.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from baselines.ppo.episode import ColumnEpisodes, Episodes, Played
from baselines.ppo.group_learner import GroupLearner
from baselines.ppo.solver import MAX_SPLITS, ORDER, PpoColumns
from neuroshard.solver import NeuroShard
from shardgym import make_cost
from shardgym.envs.reference import references_ms
from shardgym.envs.tasks import training_tasks
from shardgym.errors import import_extra

#: Of the shipped weights.
SUITES = ("dlrm4-v2", "dlrm8-v2", "wide8-v2", "tight4-v2", "tight8-v2", "hetero4-v2")
FIELDS = ("step", "cpu_s", "episodes", "complete", "ratio")


class Recorded:
    """Episodes of a task that write down what their plans cost over its reference.

    Args:
        episodes: that are played.
        reference_ms: of the task.
        ratios: what costs are appended to; infinite where an episode ended without a plan.
    """

    def __init__(self, episodes: Episodes, reference_ms: float, ratios: list[float]) -> None:
        self.follow = episodes.follow
        self._play = episodes.play
        self._reference_ms = reference_ms
        self._ratios = ratios

    def play(self, *arguments: Any, **settings: Any) -> Played:
        """See `Episodes`."""
        played = self._play(*arguments, **settings)
        self._ratios += (played.step_ms / self._reference_ms).tolist()
        return played


class LoggedLearner(GroupLearner):
    """The learner of the solver, which writes down what its episodes cost."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ratios: list[float] = []
        references = references_ms(self.oracle.cost, self.oracle.cost.additive(), self._tasks)
        self._episodes = [
            Recorded(episodes, ms, self._ratios)
            for episodes, ms in zip(self._episodes, references.tolist(), strict=True)
        ]
        self._started = time.process_time()
        self.rows: list[dict[str, float]] = []

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """See `GroupLearner`."""
        self._ratios.clear()
        figures = super().step(number, rng)
        if not self._ratios:  # a step of imitation
            return figures
        ratios = np.array(self._ratios)
        complete = np.isfinite(ratios)
        mean = float(ratios[complete].mean()) if complete.any() else float("nan")
        values = number, time.process_time() - self._started, len(ratios), int(complete.sum()), mean
        self.rows.append(dict(zip(FIELDS, values, strict=True)))
        print({name: round(float(value), 3) for name, value in self.rows[-1].items()}, flush=True)
        return figures


class Logged(PpoColumns):
    """The solver with that learner."""

    learner: LoggedLearner

    def make_learner(self, network: Any, tasks: Any, oracle: Any, steps: int) -> LoggedLearner:
        """See `PpoColumns`."""
        costs = oracle.cost.additive()
        costs.share_shards()
        episodes = [ColumnEpisodes(task, costs, ORDER, MAX_SPLITS) for task in tasks]
        self.learner = LoggedLearner(network, tasks, oracle, steps, self.settings, episodes, NeuroShard())
        return self.learner


def main() -> None:
    """Train, and write table and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--suite", action="append", dest="suites", help="repeatable (default: those of shipped weights)"
    )
    parser.add_argument("--steps", type=int, default=PpoColumns.default_steps, help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=600, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_name("ratio.csv"))
    parser.add_argument("--plot", type=Path, default=Path(__file__).with_name("ratio.png"))
    arguments = parser.parse_args()
    tasks = training_tasks(arguments.suites or SUITES, arguments.tasks, arguments.seed)
    solver = Logged()
    # No validation in between: it would be in the processor time.
    solver.fit(tasks, make_cost("simulator"), arguments.seed, steps=arguments.steps, evaluate_every=arguments.steps)
    with arguments.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows({name: f"{value:.5g}" for name, value in row.items()} for row in solver.learner.rows)
    draw(solver.learner.rows, "ppo_columns on its training tasks", arguments.plot)


def draw(rows: list[dict[str, float]], title: str, path: Path) -> None:
    """Draw ratio and share of complete episodes over processor time."""
    figure = import_extra("matplotlib.figure", "the picture").Figure(figsize=(6, 4), layout="constrained")
    cost, share = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    minutes = [row["cpu_s"] / 60 for row in rows]
    cost.plot(minutes, [row["ratio"] for row in rows], marker=".")
    cost.axhline(1.0, color="grey", linewidth=0.8)
    cost.set(ylabel="cost / reference", title=title)
    share.plot(minutes, [row["complete"] / row["episodes"] for row in rows], marker=".")
    share.set(ylabel="complete", xlabel="CPU minutes of training", ylim=(0, 1.05))
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
