"""Steps per second of the native vector environments, random legal actions, costs of finished plans included.

    python benchmarks/environment.py [--ids TableWise,ColumnWise,AnyWise] [--reward dense] [--observation timed]
        [--weights FOLDER] [--suite S] [--envs 1,64,1024,4096] [--processes 2] [--json]

The reference is Gymnasium's wrapper around single environments (`vectorization_mode="sync"`) in the same run, which
draws the same tasks and gives the same rewards. A step places a table or a shard, or cuts it; the calls that only reset
an environment are not counted, their time is. Actions are drawn from all environments' masks at once; that time is told
apart. With several processes each has environments of its own, and their steps are added up. The ratio is of steps per
second of processor time, which neighbours on a shared core disturb less than the clock. Tasks are an even selection of
the suite, and every task has been seen before the clock starts: a new task takes a millisecond or more once.

DreamShard's environment, which places whole tables, did 2,353 steps per second (50 tables, 4 devices, random actions,
its own cost net), measured on the same kind of machine on another day: the ratio to it is indicative only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np
import numpy.typing as npt
from tabulate import tabulate

import shardgym

IDS = ("TableWise", "ColumnWise", "AnyWise")
DREAMSHARD = 2353
#: Environments of the reference; its speed does not depend on how many there are.
WRAPPED = 16
_HEADERS = (
    "environment",
    "cost",
    "number",
    "steps/s",
    "with drawing",
    "steps/CPU s",
    "ratio",
    "steps/s to DreamShard's",
)


class Case(NamedTuple):
    """What is timed: environments of one id, and of one kind (`native` or `sync`)."""

    env_id: str
    kind: str
    num_envs: int
    settings: dict[str, Any]
    seconds: float


class Timing(NamedTuple):
    """Steps, and seconds of stepping, of drawing actions, and of processor time for stepping."""

    steps: int
    stepping_s: float
    drawing_s: float
    processor_s: float


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", help="folder written by 'shardgym pretrain'; those of the package when not given")
    parser.add_argument("--suite", default="dlrm4-v1", help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=100, help="of the suite (%(default)s)")
    parser.add_argument("--ids", default=",".join(IDS), help="(%(default)s)")
    parser.add_argument("--costs", default="simulator,roofline", help="(%(default)s)")
    parser.add_argument("--reward", default="terminal", choices=("terminal", "dense"), help="(%(default)s)")
    parser.add_argument("--observation", default="compact", help="(%(default)s)")
    parser.add_argument("--envs", default="1,64,1024,4096", help="numbers of environments (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of every measurement (%(default)s)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        row
        for env_id in arguments.ids.split(",")
        for cost in arguments.costs.split(",")
        for row in rows_of(env_id, cost, arguments)
    ]
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=",.1f", intfmt=","))


def rows_of(env_id: str, cost: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all numbers of an environment with one cost model, the reference before and after them."""
    suite = shardgym.load_suite(arguments.suite)
    tasks = [suite[n] for n in np.linspace(0, len(suite) - 1, min(arguments.tasks, len(suite))).astype(int).tolist()]
    settings: dict[str, Any] = {
        "tasks": tasks, "cost": cost, "reward": arguments.reward, "observation": arguments.observation
    }  # fmt: skip
    if cost == "simulator" and arguments.weights:
        settings["cost_settings"] = {"weights": arguments.weights}
    reference = Case(env_id, "sync", WRAPPED, settings, arguments.seconds)
    numbers = [int(number) for number in arguments.envs.split(",")]
    cases = [reference, *(Case(env_id, "native", n, settings, arguments.seconds) for n in numbers), reference]
    before, *native, after = [timed(case, arguments.processes) for case in cases]
    wrapped = (rate(before) + rate(after)) / 2
    named = [(f"sync {WRAPPED}", before), *((f"native {n}", t) for n, t in zip(numbers, native, strict=True))]
    return [row(env_id, cost, name, timings, wrapped) for name, timings in named]


def row(env_id: str, cost: str, name: str, timings: list[Timing], wrapped: float) -> dict[str, Any]:
    """Return a line of the table; `wrapped` is the reference's rate."""
    drawing = sum(t.steps / (t.stepping_s + t.drawing_s) for t in timings)
    steps = sum(t.steps / t.stepping_s for t in timings)
    rates = round(steps), round(drawing), round(rate(timings)), rate(timings) / wrapped, steps / DREAMSHARD
    values = env_id, cost, name, *rates
    return dict(zip(_HEADERS, values, strict=True))


def rate(timings: list[Timing]) -> float:
    """Return the steps per second of processor time of all processes together."""
    return sum(t.steps / t.processor_s for t in timings)


def timed(case: Case, processes: int) -> list[Timing]:
    """Time a case in so many processes at the same time."""
    if processes == 1:
        return [measured(case, lambda: None)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, _remember, (barrier,)) as pool:
        return list(pool.map(_measured_together, [case] * processes))


def measured(case: Case, ready: Callable[[], Any]) -> Timing:
    """Play every task, mix environments up, call `ready`, and time what follows."""
    mode = {"native": "vector_entry_point", "sync": "sync"}[case.kind]
    envs = gymnasium.make_vec(
        f"ShardGym/{case.env_id}-v0", num_envs=case.num_envs, vectorization_mode=mode, **case.settings
    )
    rng = np.random.default_rng(0)
    tasks = case.settings["tasks"]
    for index, task in enumerate(tasks):
        masks = envs.reset(options={"task_index": index})[0]["action_mask"]
        for _ in range(task.num_tables):
            masks = envs.step(legal_actions(masks, rng))[0]["action_mask"]
    masks = envs.reset(seed=0)[0]["action_mask"]
    # After some episodes the environments no longer end in the same steps.
    for _ in range(3 * max(task.num_tables for task in tasks)):
        masks = envs.step(legal_actions(masks, rng))[0]["action_mask"]
    ready()
    timing = stepped(envs, masks, rng, case.seconds)
    envs.close()
    return timing


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
    return Timing(steps, stepping, drawing, processor)


def legal_actions(masks: npt.NDArray[np.int8], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw one legal action for each row, uniformly; 0 where there is none, as the step resets then."""
    allowed = masks.cumsum(axis=1)
    wanted = (rng.random(len(masks)) * allowed[:, -1]).astype(np.int64)
    return (allowed > wanted[:, None]).argmax(axis=1)


def _remember(barrier: Any) -> None:
    globals()["_barrier"] = barrier


def _measured_together(case: Case) -> Timing:
    return measured(case, globals()["_barrier"].wait)


if __name__ == "__main__":
    main()
