"""What `run.py` compares with: workers that build a fresh operator for every sample.

Not a script: `run.py` starts it in a process of its own, with the allocator's default settings.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from shardgym.child import Handler
from shardgym.costs.fbgemm.cpu import CpuBackend
from shardgym.costs.fbgemm.jobs import ShardSet, StepTimes, TimingJob
from shardgym.costs.fbgemm.operator import RequestMaker, build_operator
from shardgym.costs.fbgemm.worker import Measurer


class FreshBackend(CpuBackend):
    """Lets FBGEMM allocate the weights of every operator anew and frees them after the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps_operators = False

    def build(self, shard_set: ShardSet) -> Any:
        """Return an operator on memory of its own."""
        return build_operator(shard_set, self.device)


class PublishedWay:
    """Builds an operator per sample and repeats one batch of ids, which is kept from sample to sample."""

    def __init__(self, seed: int) -> None:
        self._backend = FreshBackend()
        self._requests = RequestMaker(seed, self._backend.device, self._backend.kept_bytes().drawn)

    def __call__(self, job: TimingJob) -> StepTimes:
        """Run a job."""
        ids = self._requests.request(job.shard_set, 0)
        operator = self._backend.build(job.shard_set)
        gradient = self._backend.gradient(job.shard_set)
        steps = [self._backend.step(operator, ids, gradient) for _ in range(job.warmups + job.iterations)]
        return StepTimes(np.array(steps[job.warmups :]))


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Load the way of measuring that `settings` names, pinned like the real worker."""
    os.sched_setaffinity(0, {settings["core"]})
    seed = settings["seed"]
    return PublishedWay(seed) if settings["way"] == "published" else Measurer(FreshBackend(), seed), {}
