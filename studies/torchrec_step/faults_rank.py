"""A rank of version 2 of the measured cost that counts page faults; `memory.py` starts it."""

from __future__ import annotations

import resource
from typing import Any, ClassVar

import numpy as np

from shardgym.arrays import Ints
from shardgym.costs.fbgemm import step_rank
from shardgym.child import Handler, serve
from shardgym.costs.fbgemm.step import StepJob, StepMarks


class FaultClock(step_rank.Clock):
    """Notes beside the clocks how many page faults the process has had, gloo's thread included."""

    #: Those of the current job, one for each step.
    made: ClassVar[list[FaultClock]] = []

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[int] = []
        self.made.append(self)

    def mark(self) -> None:
        """Note all three."""
        super().mark()
        self.faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Join the group as every rank does; answers are the marks of a job, and faults of shape (steps, parts)."""
    step_rank.Clock = FaultClock  # type: ignore[misc]
    handler, facts = step_rank.start(settings)

    def answer(job: StepJob) -> tuple[StepMarks, Ints]:
        FaultClock.made.clear()
        marks = handler(job)
        return marks, np.diff([clock.faults for clock in FaultClock.made[job.warmups :]], axis=1)

    return answer, facts


if __name__ == "__main__":
    serve(start)
