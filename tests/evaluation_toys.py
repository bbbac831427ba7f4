"""Cost models and solvers that are simple enough to work out by hand, importable as `evaluation_toys:Name`."""

import json
import logging
import lzma
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from shardgym import CostModel, EmbeddingTable, NoFeasiblePlanError, PlanCost, ShardingPlan, ShardingTask, Topology
from shardgym.errors import MeasurementError
from shardgym.evaluation.solver import solver_names

TOY = "evaluation_toys:"
#: Registered solvers that this environment can run.
INSTALLED = [name for name in solver_names() if not name.startswith("torchrec") or find_spec("torchrec")]


def toy_tasks(count: int = 3, num_devices: int = 2) -> list[ShardingTask]:
    """Tasks of four tables of 4 columns that differ in batch size; one device holds three of the tables."""
    tables = tuple(EmbeddingTable(f"t{i}", 10, 4, pooling_factor=1.0 + i) for i in range(4))
    topology = Topology(num_devices=num_devices, memory_bytes=3 * 160)
    return [ShardingTask(tables, topology, batch_size=64 + i, name=f"toys/{i}") for i in range(count)]


@dataclass(frozen=True)
class ToySuite:
    """A suite made of a list."""

    tasks: list[ShardingTask]
    name: str = "toys"

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> ShardingTask:
        return self.tasks[index]


class CountCost(CostModel):
    """A device takes one ms of forward compute per shard; a batch of 64 + i adds i / 10 ms to device 0."""

    name = "evaluation_toys:CountCost"
    version = "1"
    deterministic = True
    factor = 1.0

    def __init__(self, tag: str = "toy") -> None:
        self._tag = tag
        self.calls: list[tuple[str, int]] = []

    @property
    def hardware(self) -> str:
        return self._tag

    def settings(self):
        return {} if self._tag == "toy" else {"tag": self._tag}

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        self.calls.append((task.name, len(plans)))
        return [self._cost(task, plan) for plan in plans]

    def _cost(self, task: ShardingTask, plan: ShardingPlan) -> PlanCost:
        per_device = np.zeros((task.num_devices, 5))
        per_device[:, 1] = [self.factor * len(plan.on(d)) for d in range(task.num_devices)]
        per_device[0, 1] += (task.batch_size - 64) / 10
        return PlanCost(per_device, self.name, self.version, self.hardware)


class DriftingCost(CountCost):
    """Stands for a measurement: costs carry noise, a session, and the `factor` of the day."""

    name = "evaluation_toys:DriftingCost"
    deterministic = False

    def _cost(self, task: ShardingTask, plan: ShardingPlan) -> PlanCost:
        return replace(super()._cost(task, plan), noise=0.01, session=f"day of {self.factor}", compute="measured")


class BrokenCost(CountCost):
    """Cannot score tasks with a batch of 65."""

    name = "evaluation_toys:BrokenCost"

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        if task.batch_size == 65:
            raise MeasurementError("the worker died")
        return super().score(task, plans)


def _placing(name: str, devices: list[int]) -> type:
    """Return a solver that puts the four tables on these devices."""
    places = lambda self, task, cost, seed=0: ShardingPlan.table_wise(task, devices)  # noqa: E731
    return type(name, (), {"solve": places, "__module__": __name__})


Halves = _placing("Halves", [0, 0, 1, 1])  # 2 ms under CountCost: two tables on each of the first two devices
Lopsided = _placing("Lopsided", [0, 0, 0, 1])  # 3 ms under CountCost: three tables on device 0
Mirrored = _placing("Mirrored", [0, 1, 1, 1])  # 3 ms under CountCost: three tables on device 1
Overfull = _placing("Overfull", [0, 0, 0, 0])  # device 0 lacks memory for the fourth table


class Wanders:
    def solve(self, task, cost, seed=0):
        os.chdir("/")
        return Halves().solve(task, cost)


class Tuned:
    def __init__(self, k: int = 0) -> None:
        self.k = k

    def solve(self, task, cost, seed=0):
        return Halves().solve(task, cost)


class CrashesUnprintably:
    def solve(self, task, cost, seed=0):
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no message")

        raise Mute


class HollowPlan:
    def solve(self, task, cost, seed=0):
        return object.__new__(ShardingPlan)


class GivesUp:
    def solve(self, task, cost, seed=0):
        raise NoFeasiblePlanError("table 't3' fits nowhere")


class Validates:
    def solve(self, task, cost, seed=0):
        ShardingPlan.table_wise(task, [0, 0, 0, 0]).validate(task)


class Crashes:
    def solve(self, task, cost, seed=0):
        logging.getLogger("shardgym.solvers.toy").warning("about to crash")
        raise KeyError("missing\nthing")


class Exits:
    def solve(self, task, cost, seed=0):
        raise SystemExit(3)


class ReturnsNothing:
    def solve(self, task, cost, seed=0):
        return None


class WrongTask:
    def solve(self, task, cost, seed=0):
        return Halves().solve(replace(task, batch_size=1), cost)


class Meddles:
    def solve(self, task, cost, seed=0):
        object.__setattr__(task, "batch_size", 1)
        return Halves().solve(task, cost)


class FixedByNow:
    """Fails as long as the file named by SHARDGYM_TEST_BROKEN exists."""

    def solve(self, task, cost, seed=0):
        if Path(os.environ["SHARDGYM_TEST_BROKEN"]).exists():
            raise RuntimeError("not yet")
        return Halves().solve(task, cost)


class Logged:
    """Notes every call in the file named by SHARDGYM_TEST_CALLS, and takes 20 ms."""

    def solve(self, task, cost, seed=0):
        with Path(os.environ["SHARDGYM_TEST_CALLS"]).open("a") as file:
            file.write(f"{type(self).__name__} {task.name} {seed}\n")
        time.sleep(0.02)
        return Halves().solve(task, cost)


class LoggedToo(Logged):
    """A second one."""


class Interrupted:
    """Presses Ctrl-C on the task with a batch of 65: the process of the run gets the signal."""

    def solve(self, task, cost, seed=0):
        if task.batch_size == 65:
            run = multiprocessing.parent_process()
            os.kill(os.getpid() if run is None else run.pid, signal.SIGINT)
            time.sleep(10)
        return Halves().solve(task, cost)


class Spies:
    """Keeps every cost model that it was given."""

    seen: list[CostModel] = []  # noqa: RUF012

    def solve(self, task, cost, seed=0, time_limit_s=None):
        type(self).seen.append(cost)
        return Halves().solve(task, cost)


def edit(folder, number, change):
    """Change the record on line `number` by hand."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[number - 1])
    change(record)
    lines[number - 1] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")


def pack(folder):
    """Put packed records in the place of plain ones, as boards are committed; returns where they are."""
    path = folder / "records.jsonl"
    packed = folder / "records.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    return packed
