"""The loop of a run: what is missing is solved, scored and appended, task by task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from shardgym.costs.base import CostModel
from shardgym.evaluation.attempt import Attempt, attempt
from shardgym.evaluation.entrant import Entrant
from shardgym.evaluation.missing import Missing, missing_in
from shardgym.evaluation.run_info import RunInfo
from shardgym.evaluation.scoring import Judge
from shardgym.evaluation.store import Store
from shardgym.evaluation.tasks import Tasks, keep_task
from shardgym.progress import ProgressBar
from shardgym.provenance import utc_now
from shardgym.task import ShardingTask

ERRORS = "errors.log"


@dataclass(frozen=True)
class Work:
    """Everything that a run needs, and where its results go.

    Attributes:
        suite: the tasks.
        entrants: the solvers.
        info: what this run is about.
        joined: the same with earlier runs in the folder.
        judge: scores plans.
        judging: opens the judge, which is closed to solvers.
        oracle: what solvers may query.
        store: takes the results.
    """

    suite: Tasks
    entrants: Sequence[Entrant]
    info: RunInfo
    joined: RunInfo
    judge: CostModel
    judging: Callable[[], AbstractContextManager[None]]
    oracle: CostModel
    store: Store

    def run(self, progress: bool) -> None:
        """Solve, score and append what the store lacks."""
        missing = missing_in(self.store.results, self.info, self.entrants)
        judge = Judge(self.judge, self.judging, self.info, self._log)
        total = sum(map(len, missing))
        with ProgressBar(shown=progress and total > 0, total=total, unit="plan", desc=self.suite.name) as bar:
            for index, todo in enumerate(missing):
                if not todo:
                    continue
                task = self.suite[index]
                keep_task(self.store.folder, self.suite, index, task)
                attempts = self._attempts(task, todo, bar)
                bar.remark(f"task {index}: {self.info.judge} scores {len(attempts)} plans")
                old = [result for result in self.store.results if result.task_index == index]
                new = judge.score(task, index, attempts, old)
                if not self.store.results:
                    self.joined.write(self.store.folder)
                self.store.add(*new)
                bar.update(len(attempts))

    def _attempts(self, task: ShardingTask, todo: Missing, bar: ProgressBar) -> list[Attempt]:
        """Let every missing solver solve the task."""
        attempts = []
        for entrant, seed in todo:
            bar.remark(entrant.spec.title)
            attempts.append(attempt(entrant, task, self.oracle, seed, self.info.time_limit_s, self._log))
        return attempts

    def _log(self, heading: str, text: str) -> None:
        with (self.store.folder / ERRORS).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"--- {utc_now()} {heading}\n{text}\n")
