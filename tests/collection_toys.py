"""Stand-ins for processes that measure: times follow from what is measured, so runs can be compared."""

import numpy as np

import shardgym.training.collecting as collect_module
from shardgym.costs.fbgemm.jobs import HOST_WAITED, ReferenceJob, StepTimes
from shardgym.costs.fbgemm.pace import shipped_reference
from shardgym.costs.fbgemm.step import PARTS, RankSteps
from shardgym.errors import MeasurementError


class ToyTimer:
    """Answers jobs at once. Class attributes say when it breaks off, what it refuses and which times are noted."""

    ends_after: int | None = None
    refuses: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()
    answered = 0
    facts = ({"hardware": "cpu-toy-2c"},)

    def __init__(self, device, seed, timeout_s):
        pass

    def start(self):
        pass

    def close(self):
        pass

    def ask(self, job):
        cls = type(self)
        if cls.ends_after is not None and cls.answered >= cls.ends_after:
            raise KeyboardInterrupt
        cls.answered += 1
        if cls.answered in cls.refuses:
            raise MeasurementError("worker died with signal -9 (SIGKILL)")
        step = job.shard_set.width / 100
        notes = (HOST_WAITED,) if cls.answered in cls.waits else ()
        return [StepTimes(np.array([[step, 2 * step]] * job.iterations), notes)]


class ToyGroup:
    """Complete steps in which part number P takes P + 1 hundredths of a ms per column of the device.

    The reference of paces takes twice as long as on the machine that is 1.
    """

    broken = False

    def __init__(self, size, device, timeout_s, domain_size):
        self.size = size
        self.device = device
        self.made.append(size)

    def start(self):
        pass

    def ask(self, job):
        if self.broken:
            raise MeasurementError("device 1: worker died")
        if isinstance(job, ReferenceJob):
            return [[_twice_the_reference(own) for own in of_rank] for of_rank in job.of_ranks]
        assert job.plan.num_devices == self.size
        steps = len(job.batches) - job.warmups
        widths = [0 if held is None else held.width for held in job.plan.whole]
        parts = [np.arange(1, len(PARTS) + 1) * width / 100 for width in widths]
        return [RankSteps(np.tile(of_rank, (steps, 1)), {}) for of_rank in parts]

    def close(self):
        self.ended.append(self.size)


def _twice_the_reference(job):
    """Return forward and backward ms."""
    (ms,) = (
        shipped_reference().compute_ms[number]
        for number in range(12)
        if f"reference-{5 * number}" in {shard.table.name for shard in job.shard_set.shards}
    )
    return np.full((job.iterations, 2), ms)


def install(monkeypatch):
    """Let `collect` measure with fresh toys; returns the timer's and the group's class."""
    timer, group = type("Timer", (ToyTimer,), {}), type("Group", (ToyGroup,), {"made": [], "ended": []})
    monkeypatch.setattr(collect_module, "kernel_timer", timer)
    monkeypatch.setattr(collect_module, "require_fbgemm", lambda device: None)
    monkeypatch.setattr(collect_module, "step_ranks", group)
    return timer, group
