"""Steps per second of the native vector environments as people train with them, random legal actions.

    python benchmarks/environment.py [--ids TableWise,ColumnWise,AnyWise] [--costs simulator,roofline]
        [--pool-tasks N] [--envs 64,1024,4096] [--json] [--page benchmarks/README.md]

Tasks are drawn at random from the train half of a pool, sized like those of dlrm4-v2, rewards are dense and
observations timed: every step prices devices and the placement, and the last one the plan. Infos hold no plans, as
training needs none. A step places a table or a shard, or cuts it; the calls that only reset an environment are not
counted, their time is. Actions are drawn from all environments' masks at once; that time is told apart. Every task has
been prepared before the clock starts, as each is prepared once however long one trains; what that takes is told, too.

The reference is Gymnasium's wrapper around single environments (`vectorization_mode="sync"`) in the same run, which
gives the same rewards. The ratio is of steps per second of processor time, which neighbours on a shared core disturb
less than the clock, to the mean of a run of the reference before the native ones and one after.

DreamShard's environment, which places whole tables, did 2,353 steps per second (50 tables, 4 devices, random actions,
its own cost net), measured on the same kind of machine on another day: the ratio to it is indicative only.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np
import numpy.typing as npt
from tabulate import tabulate

import shardgym  # noqa: F401, registers environments

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from fill_pages import fill

from shardgym.envs.tasks import POOL_TASKS

IDS = ("TableWise", "ColumnWise", "AnyWise")
DREAMSHARD = 2353
#: Environments of the reference, and tasks that each of them prepares; its speed does not depend on how many there are.
WRAPPED = 16
WRAPPED_TASKS = 64
#: Steps before the clock starts.
MIXING_STEPS = 60
_HEADERS = (
    "environment", "cost", "number", "ms per new task", "steps/s", "with drawing", "steps/CPU s", "ratio",
    "steps/s to DreamShard's",
)  # fmt: skip
#: Settings of usual training.
SETTINGS = {
    "suite": "dlrm4-v2", "pool": "synthetic-2021", "reward": "dense", "observation": "timed", "plans": False,
}  # fmt: skip


class Case(NamedTuple):
    """What is timed: environments of one id, and of one kind (`native` or `sync`)."""

    env_id: str
    kind: str
    num_envs: int
    settings: dict[str, Any]
    tasks: int
    seconds: float


class Timing(NamedTuple):
    """Processor time for preparing a task in ms; steps, seconds of stepping, of drawing actions, of processor time."""

    preparing_ms: float
    steps: int
    stepping_s: float
    drawing_s: float
    processor_s: float

    @property
    def rate(self) -> float:
        """Steps per second of processor time."""
        return self.steps / self.processor_s


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool-tasks", type=int, default=POOL_TASKS, help="(%(default)s)")
    parser.add_argument("--ids", default=",".join(IDS), help="(%(default)s)")
    parser.add_argument("--costs", default="simulator", help="(%(default)s)")
    parser.add_argument("--envs", default="64,1024,4096", help="numbers of environments (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per measurement (%(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", type=Path, help="Markdown page whose block 'steps' is filled")
    arguments = parser.parse_args()
    rows = [
        row
        for env_id in arguments.ids.split(",")
        for cost in arguments.costs.split(",")
        for row in rows_of(env_id, cost, arguments)
    ]
    if arguments.page:
        shown = [{name: f"{n:,}" if isinstance(n, int) else n for name, n in row.items()} for row in rows]
        fill(arguments.page, "steps", shown, floatfmt="#.3g")
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt="#.3g", intfmt=","))


def rows_of(env_id: str, cost: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all numbers of an environment with one cost model, the reference before and after them."""
    tasks, few = arguments.pool_tasks, min(arguments.pool_tasks, WRAPPED_TASKS)
    settings = SETTINGS | {"cost": cost, "pool_tasks": tasks}
    reference = Case(env_id, "sync", WRAPPED, settings | {"pool_tasks": few}, few, arguments.seconds)
    numbers = [int(number) for number in arguments.envs.split(",")]
    natives = [Case(env_id, "native", n, settings, tasks, arguments.seconds) for n in numbers]
    cases = [reference, *natives, reference]
    before, *native, after = map(measured, cases)
    wrapped = (before.rate + after.rate) / 2
    named = [(f"sync {WRAPPED}", before), *((f"native {n}", t) for n, t in zip(numbers, native, strict=True))]
    return [row(env_id, cost, name, timings, wrapped) for name, timings in named]


def row(env_id: str, cost: str, name: str, timing: Timing, wrapped: float) -> dict[str, Any]:
    """Return a line of the table; `wrapped` is the reference's rate."""
    steps = timing.steps / timing.stepping_s
    drawing = timing.steps / (timing.stepping_s + timing.drawing_s)
    rates = round(steps), round(drawing), round(timing.rate), timing.rate / wrapped, steps / DREAMSHARD
    return dict(zip(_HEADERS, (env_id, cost, name, timing.preparing_ms, *rates), strict=True))


def measured(case: Case) -> Timing:
    """Prepare every task, mix environments up, and time what follows."""
    mode = {"native": "vector_entry_point", "sync": "sync"}[case.kind]
    envs = gymnasium.make_vec(
        f"ShardGym/{case.env_id}-v0", num_envs=case.num_envs, vectorization_mode=mode, **case.settings
    )
    rng = np.random.default_rng(0)
    used = time.process_time()
    if case.kind == "native":
        for first in range(0, case.tasks, case.num_envs):
            envs.reset(options={"task_index": (first + np.arange(case.num_envs)) % case.tasks})
    else:
        for index in range(case.tasks):
            envs.reset(options={"task_index": index})
    preparing_ms = 1e3 * (time.process_time() - used) / case.tasks / (1 if case.kind == "native" else case.num_envs)
    masks = envs.reset(seed=0)[0]["action_mask"]
    # After some episodes the environments no longer end in the same steps.
    for _ in range(MIXING_STEPS):
        masks = envs.step(legal_actions(masks, rng))[0]["action_mask"]
    timing = stepped(envs, masks, rng, case.seconds)
    envs.close()
    return timing._replace(preparing_ms=preparing_ms)


def stepped(envs: gymnasium.vector.VectorEnv, masks: Any, rng: np.random.Generator, seconds: float) -> Timing:
    """Step for a while."""
    steps = 0
    stepping = 0.0
    drawing = 0.0
    processor = 0.0
    while stepping + drawing < seconds:
        start = time.perf_counter()
        actions = legal_actions(masks, rng)
        playing = int(masks.any(axis=1).sum())
        drawn = time.perf_counter()
        used = time.process_time()
        masks = envs.step(actions)[0]["action_mask"]
        steps += playing
        drawing += drawn - start
        stepping += time.perf_counter() - drawn
        processor += time.process_time() - used
    return Timing(0.0, steps, stepping, drawing, processor)


def legal_actions(masks: npt.NDArray[np.int8], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw one legal action for each row, uniformly; 0 where there is none, as the step resets then."""
    allowed = masks.cumsum(axis=1)
    wanted = (rng.random(len(masks)) * allowed[:, -1]).astype(np.int64)
    return (allowed > wanted[:, None]).argmax(axis=1)


if __name__ == "__main__":
    main()
