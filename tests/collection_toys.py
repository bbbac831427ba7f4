"""Stand-ins for processes that measure: times follow from what is measured, so runs can be compared."""

from __future__ import annotations

import numpy as np

import shardgym.training.collecting as collect_module
from shardgym.costs.fbgemm.jobs import HOST_WAITED, StepTimes
from shardgym.costs.fbgemm.step import PARTS, RankSteps
from shardgym.errors import MeasurementError


class ToyPool:
    """Answers jobs at once. Class attributes say when it breaks off, what it refuses and which times are noted."""

    ends_after: int | None = None
    refuses: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()
    answered = 0

    def __init__(self, device, seed, timeout_s):
        pass

    def facts(self):
        return {"hardware": "cpu-toy-2c", "versions": {}}

    def close(self):
        pass

    def run(self, jobs):
        for job in jobs:
            yield self._answer(job)

    def _answer(self, job):
        cls = type(self)
        if cls.ends_after is not None and cls.answered >= cls.ends_after:
            raise KeyboardInterrupt
        cls.answered += 1
        if cls.answered in cls.refuses:
            return job, "worker died with signal -9 (SIGKILL)"
        step = job.shard_set.width / 100
        notes = (HOST_WAITED,) if cls.answered in cls.waits else ()
        return job, StepTimes(np.array([[step, 2 * step]] * job.iterations), notes)


class ToyGroup:
    """Complete steps in which part number P takes P + 1 hundredths of a ms per column of the device."""

    broken = False

    def __init__(self, size, device, timeout_s):
        self.size = size
        self.device = device
        self.made.append(size)

    def start(self):
        pass

    def ask(self, jobs):
        if self.broken:
            raise MeasurementError("device 1: worker died")
        job = jobs[0]
        assert job.plan.num_devices == len(jobs) == self.size
        steps = len(job.batches) - job.warmups
        widths = [0 if held is None else held.width for held in job.plan.whole]
        parts = [np.arange(1, len(PARTS) + 1) * width / 100 for width in widths]
        return [RankSteps(np.tile(of_rank, (steps, 1)), {}) for of_rank in parts]

    def close(self):
        self.ended.append(self.size)


def install(monkeypatch):
    """Let `collect` measure with fresh toys; returns the pool's and the group's class."""
    pool, group = type("Pool", (ToyPool,), {}), type("Group", (ToyGroup,), {"made": [], "ended": []})
    monkeypatch.setattr(collect_module, "WorkerPool", pool)
    monkeypatch.setattr(collect_module, "require_fbgemm", lambda device: None)
    monkeypatch.setattr(collect_module, "RankGroup", group)
    return pool, group
