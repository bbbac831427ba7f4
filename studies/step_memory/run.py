"""What the memory of a step is predicted to be, and what processes really take.

    python studies/step_memory/run.py --out studies/step_memory [--model NAME ...] [--report]

The plans are those of `studies/sharding_kinds`: 12 on 2 ranks and 16 on 4, of every sharding type and mixed ones, for
models whose ids take most, whose pooled values do, and one between. Each rank is a process; it runs two steps of every
plan, by the measured cost's own code and by TorchRec's `DistributedModelParallel`, and the most that it has in memory
is held against `ShardingPlan.memory_per_device`. There is no dense part: gradients of pooled values are these values.

Counted is resident memory (VmHWM) beyond what the process had before the plan's tables and batches, so weights, states,
two batches, and what the steps have in flight. glibc is told to give back blocks of 64 KiB and more when they are
freed, so that this is what is in use.

DIR/result.csv has what was measured, a row per model, runner, number of ranks, plan and rank. Predictions are made anew
each time; `--report` makes them for what is in the file. Models that are not measured again stay in it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TOKENIZERS_PARALLELISM": "false"}
_STUDIES = Path(__file__).parents[1]
sys.path += [str(Path(__file__).parent), str(_STUDIES.parent / "benchmarks")]

from ranks import BATCHES, run_rank

from shardgym import ShardingPlan, ShardingTask, StepMemory

#: glibc gives back freed blocks of so many bytes.
LIVE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}

#: What is in memory where a step takes most. Of the measured cost's steps it was counted in `plan_on_rank.py`, but for
#: what FBGEMM's backward pass sorts ids with: values and gradients of whole tables; of partial sums besides what
#: arrives from all ranks, and gloo's buffer of an all-gather; own outputs as they arrive, joined, and as sent back.
STEPS = {
    "fbgemm": StepMemory(
        input_copies=BATCHES, id_copies=2, output_copies=2, partial_sum_copies=4, joined_output_copies=3,
        gradient_copies=1, quantizer_copies=0,
    ),
    "torchrec": StepMemory(input_copies=BATCHES),
}  # fmt: skip

#: Models: factors of the widths and of the ids per sample of `studies/sharding_kinds`, the batch, the task's options,
#: and who runs it.
MODELS: dict[str, tuple[int, float, int, dict[str, Any], tuple[str, ...]]] = {
    "ids": (1, 1.0, 16_384, {}, ("fbgemm", "torchrec")),
    "between": (2, 0.4, 12_288, {}, ("fbgemm", "torchrec")),
    "outputs": (4, 0.1, 8192, {"optimizer": "rowwise_adagrad"}, ("fbgemm", "torchrec")),
    "outputs, FP16 on the wire": (4, 0.1, 8192, {"precision": "fp16"}, ("torchrec",)),
}
MIB = 2**20


def sharding_kinds() -> Any:
    """Return the script of `studies/sharding_kinds` as a module."""
    spec = importlib.util.spec_from_file_location("sharding_kinds", _STUDIES / "sharding_kinds/run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_task(kinds: Any, model: str, ranks: int) -> ShardingTask:
    """Return a model for so many ranks; weights are FP32, whatever travels."""
    factor, share, batch_size, options, _ = MODELS[model]
    task = kinds.make_task(ranks, 1e9, batch_size)
    tables = tuple(
        dataclasses.replace(
            table, embedding_dim=factor * table.embedding_dim, pooling_factor=share * table.pooling_factor,
            precision="fp32" if "precision" in options else None,
        )
        for table in task.tables
    )  # fmt: skip
    return dataclasses.replace(task, tables=tables, **options)


def measure(task: ShardingTask, plans: list[ShardingPlan], runners: tuple[str, ...]) -> list[list[Any]]:
    """Run all plans in new processes; rows as `run_rank` gives them, sorted."""
    context = multiprocessing.get_context("spawn")  # the allocator is set when a process starts
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=run_rank, args=(rank, task, plans, runners, Path(folder)))
            for rank in range(task.num_devices)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a rank ended before its time; what it printed says why")
        return sorted(row for path in Path(folder).glob("*.json") for row in json.loads(path.read_text()))


def predicted_bytes(kinds: Any, rows: list[dict[str, Any]]) -> list[int]:
    """Return what is predicted for each row."""
    tasks: dict[tuple[Any, ...], tuple[ShardingTask, dict[tuple[str, str], ShardingPlan]]] = {}
    found = []
    for row in rows:
        key = row["model"], row["runner"], row["ranks"]
        if key not in tasks:
            task = make_task(kinds, row["model"], int(row["ranks"]))
            counted = dataclasses.replace(task, step_memory=STEPS[row["runner"]])
            tasks[key] = counted, kinds.make_plans(counted)
        task, plans = tasks[key]
        found.append(plans[row["kind"], row["plan"]].memory_per_device(task)[int(row["rank"])].total)
    return found


def summary(kinds: Any, rows: list[dict[str, Any]]) -> str:
    """Return how far predictions are off, by model and runner; of a plan counts the process that takes most."""
    groups = defaultdict(list)
    for row, predicted in zip(rows, predicted_bytes(kinds, rows), strict=True):
        real = int(row["real_bytes"])
        name = f"{row['kind']}, {row['plan']}"
        groups[row["model"], row["runner"], row["ranks"]].append((real, predicted / real - 1, name))
    lines = []
    for (model, runner, ranks), members in groups.items():
        errors = [error for _, error, _ in members]
        hottest = {name: error for _, error, name in sorted(members)}
        lines.append(
            {
                "model": model, "steps": runner, "ranks": ranks,
                "plans within 15 %": f"{sum(abs(e) <= 0.15 for e in hottest.values())} of {len(hottest)}",
                "processes": f"{sum(abs(e) <= 0.15 for e in errors)} of {len(errors)}",
                "median error": f"{100 * statistics.median(map(abs, errors)):.1f} %",
                "range": f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %",
                "worst": max(members, key=lambda member: abs(member[1]))[2],
            }
        )  # fmt: skip
    return tabulate(lines, "keys", "github", disable_numparse=True)


def main() -> None:
    """Measure, write the rows and print how far predictions are off."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    os.environ.update(LIVE)
    kinds = sharding_kinds()
    path = given.out / "result.csv"
    chosen = [] if given.report else given.model or list(MODELS)
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["model"] not in chosen]
    for model in chosen:
        for ranks in (2, 4):
            task = make_task(kinds, model, ranks)
            plans = kinds.make_plans(task)
            for rank, runner, number, before, peak in measure(task, list(plans.values()), MODELS[model][-1]):
                kind, name = list(plans)[number]
                rows.append(
                    {
                        "model": model, "runner": runner, "ranks": ranks, "kind": kind, "plan": name, "rank": rank,
                        "before_steps_bytes": before, "real_bytes": peak,
                    }
                )  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(summary(kinds, rows))


if __name__ == "__main__":
    main()
