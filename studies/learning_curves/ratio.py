"""What plans of a policy cost over the reference of their task while it is trained.

    python studies/learning_curves/ratio.py [--solver ppo_columns] [--suite dlrm4-v2] [--steps 160] [--tasks 300]
        [--csv studies/learning_curves/ratio.csv] [--plot studies/learning_curves/ratio.png]

The solver is fitted as `shardgym fit` does it, with the simulator as the oracle. The ratio is the mean
of `info["ratio"]` over all complete episodes of a step, as `shardgym.envs.sb3.RatioLog` logs it: 1 is as good as LPT
with halving. They are drawn from the policy that learns, so exploration is in it.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from baselines.ppo.solver import Ppo, PpoColumns, PpoLearner
from shardgym import make_cost
from shardgym.envs.sb3 import RatioLog
from shardgym.envs.tasks import training_tasks
from shardgym.errors import import_extra

SOLVERS = {solver.name: solver for solver in (Ppo, PpoColumns)}
FIELDS = ("step", "cpu_s", "episodes", "complete", "ratio", "return")


class Counted(RatioLog):
    """Counts episodes, too."""

    def __init__(self) -> None:
        super().__init__(window=10**6)
        self.episodes = 0

    def forget(self) -> None:
        """Begin a step of training."""
        self._ratios.clear()
        self.episodes = 0

    @property
    def complete(self) -> int:
        """Episodes that ended with a complete plan."""
        return len(self._ratios)

    def _on_step(self) -> bool:
        self.episodes += sum("ratio" in info for info in self.locals["infos"])
        return super()._on_step()


class LoggedLearner(PpoLearner):
    """The learner of the solver, which writes down what its episodes cost."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._log = Counted()
        self._model.learn = functools.partial(self._model.learn, callback=self._log)
        self._started = time.process_time()
        self.rows: list[dict[str, float]] = []

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """See `PpoLearner`."""
        self._log.forget()
        figures = super().step(number, rng)
        ratio = self._model.logger.name_to_value["rollout/ratio_mean"]
        values = number, time.process_time() - self._started, self._log.episodes, self._log.complete, ratio
        self.rows.append(dict(zip(FIELDS, (*values, figures["reward"]), strict=True)))
        print({name: round(float(value), 3) for name, value in self.rows[-1].items()}, flush=True)
        return figures


def main() -> None:
    """Train, and write table and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--solver", default="ppo_columns", choices=SOLVERS)
    parser.add_argument("--suite", default="dlrm4-v2")
    parser.add_argument("--steps", type=int, default=160, help="those of shipped weights (%(default)s)")
    parser.add_argument("--tasks", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_name("ratio.csv"))
    parser.add_argument("--plot", type=Path, default=Path(__file__).with_name("ratio.png"))
    arguments = parser.parse_args()
    learners: list[LoggedLearner] = []

    class Logged(SOLVERS[arguments.solver]):  # type: ignore[misc]
        def make_learner(self, network: Any, tasks: Any, oracle: Any, steps: int) -> LoggedLearner:
            learners.append(LoggedLearner(network, tasks, oracle, steps, self.settings, self.env))
            return learners[-1]

    tasks = training_tasks(arguments.suite, arguments.tasks, arguments.seed)
    # No validation in between: it would be in the processor time.
    Logged().fit(tasks, make_cost("simulator"), arguments.seed, steps=arguments.steps, evaluate_every=arguments.steps)
    [learner] = learners
    with arguments.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows({name: f"{value:.5g}" for name, value in row.items()} for row in learner.rows)
    draw(learner.rows, f"{arguments.solver} on tasks like {arguments.suite}", arguments.plot)


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
