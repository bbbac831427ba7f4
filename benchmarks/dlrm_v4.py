"""MLPerf's DLRMv4 as published and as ShardGym says it: memory of hot ranks, gains of fewer bytes, and better plans.

    python benchmarks/dlrm_v4.py

Tasks are those of the suite `dlrm-v4`. "rows" is the plan that ran out of memory: all tables by rows over all ranks.
"mend" is the published one: `album_id` and `artist_id` by columns, the others by rows.

Published step times are of whole steps, of which embeddings are a part that is not published. What repeated ids and
FP32 cost is embedding alone, so differences of steps are held against differences of what `gpu` says of embeddings, and
no share has to be taken from anywhere; the last column says which share of the published step embeddings would be.
"""

import dataclasses
from typing import Any

from tabulate import tabulate

from neuroshard.plus.sharing import even_rows
from shardgym import Shard, ShardingPlan, ShardingTask, load_suite, make_cost, make_solver
from shardgym.errors import ShardGymError

SUITE = "dlrm-v4"
GIB = 2**30
MENDED = ("album_id", "artist_id")
#: Numbers of tasks of the suite.
AVERAGE, SKEWED, PATCHED = 9, 10, 11
ALL_IDS = {8: 0, 16: 4}
#: ms of a step on so many GPUs, with all ids and without repeats (mlcommons/training, recommendation_v4).
PUBLISHED_MS = {8: (941.6, 805.7), 16: (1108.0, 818.0)}
#: GiB on the hottest of 32 ranks, of 288; with rows in the steady state, before the skewed batch.
PUBLISHED_ROWS_GIB = (208, 238)
PUBLISHED_MEND_SHARE = 0.58


def by_rows(task: ShardingTask) -> ShardingPlan:
    """Cut all tables by rows over all ranks, as TorchRec's planner did."""
    return ShardingPlan.of(task, [shard for table in task.tables for shard in even_rows(table, task.num_devices)])


def mended(task: ShardingTask) -> ShardingPlan:
    """Cut `MENDED` by columns over all ranks, and the others by rows."""
    shards = []
    for table in task.tables:
        width = table.embedding_dim // task.num_devices
        if table.name in MENDED:
            rows = (0, table.num_embeddings)
            shards += [Shard(table.name, rows, (n * width, (n + 1) * width), n) for n in range(task.num_devices)]
        else:
            shards += even_rows(table, task.num_devices)
    return ShardingPlan.of(task, shards)


def hottest_gib(task: ShardingTask, plan: ShardingPlan) -> float:
    """Return what the fullest rank has in memory in the hottest batch."""
    return max(held.total for held in plan.memory_per_device(task)) / GIB


def in_fp16(task: ShardingTask) -> ShardingTask:
    """Return a task that communicates in FP16, by stock quantisers, with weights as they are."""
    assert task.step_memory is not None
    return dataclasses.replace(
        task,
        precision="fp16",
        tables=tuple(dataclasses.replace(table, precision="fp32") for table in task.tables),
        step_memory=dataclasses.replace(task.step_memory, quantizer_copies=3.0),
    )


def rows_ms(task: ShardingTask) -> float:
    """Return what `gpu` says of all tables by rows, whether or not they fit."""
    roomy = dataclasses.replace(task, step_memory=None, topology=task.topology.roomy())
    return make_cost("gpu").evaluate(roomy, [by_rows(roomy)])[0].total_ms


def memory_rows() -> list[dict[str, Any]]:
    """Return memory of the hottest of 32 ranks, with both plans in three cases."""
    suite = load_suite(SUITE)
    low, high = PUBLISHED_ROWS_GIB
    cases = [
        ("average batch, stock quantiser", AVERAGE, f"{low} to {high} GiB", f"{100 * PUBLISHED_MEND_SHARE:.0f} %"),
        ("skewed batch, stock quantiser", SKEWED, "out of memory", f"{100 * PUBLISHED_MEND_SHARE:.0f} %"),
        ("skewed batch, patched quantiser", PATCHED, "fits", "-"),
    ]
    found = []
    for case, number, rows, mend in cases:
        task = suite[number]
        limit = task.topology.memory_bytes[0] / GIB
        for name, plan, published in (("rows", by_rows(task), rows), ("mend", mended(task), mend)):
            used = hottest_gib(task, plan)
            fits = "fits" if used <= limit else "refused"
            found.append({"case": case, "plan": name, "published": published, "GiB": used, "%": 100 * used / limit,
                          "": fits})  # fmt: skip
    return found


def gain_rows() -> list[dict[str, Any]]:
    """Return gains of a step, published and by `gpu`, with all tables by rows."""
    suite = load_suite(SUITE)
    found = []
    for gpus, number in ALL_IDS.items():
        task = suite[number]
        step, without = PUBLISHED_MS[gpus]
        for wire, of in (("FP32", task), ("FP16", in_fp16(task))):
            all_ms, once_ms = (rows_ms(dataclasses.replace(of, dedup_ids=dedup)) for dedup in (False, True))
            found.append({
                "GPUs": gpus, "what": f"no repeats, {wire}", "published ms": step - without,
                "published %": 100 * (1 - without / step), "ms": all_ms - once_ms, "%": 100 * (all_ms - once_ms) / step,
                "embedding %": 100 * all_ms / step,
            })  # fmt: skip
        wide, narrow = (rows_ms(of) for of in (task, in_fp16(task)))
        found.append({"GPUs": gpus, "what": "FP16, all ids", "published %": 6.0, "ms": wide - narrow,
                      "%": 100 * (wide - narrow) / step, "embedding %": 100 * wide / step})  # fmt: skip
    return found


def plan_rows() -> list[dict[str, Any]]:
    """Return what `neuroshard_plus` finds beyond the mend, by the suite's judge; it asks the suite's oracle."""
    found = []
    for task in load_suite(SUITE):
        judge = make_cost("gpu")
        rows, mend = (judge.evaluate(task, [of(task)])[0].total_ms for of in (by_rows, mended))
        assert task.step_memory is not None
        memory = task.topology.memory_bytes[0] / GIB
        ids = "distinct" if task.dedup_ids else "all"
        row: dict[str, Any] = {"task": task.name, "GPUs": task.num_devices, "GiB": memory, "ids": ids,
                               "wire": task.precision, "rows ms": rows, "mend ms": mend}  # fmt: skip
        try:
            plan = make_solver("neuroshard_plus").solve(task, make_cost("roofline"), seed=0)
        except ShardGymError as error:
            row["what it does"] = str(error)[:60]
        else:
            row["solver ms"] = judge.evaluate(task, [plan])[0].total_ms
            kinds = [plan.kind_of(table.name, task) for table in task.tables]
            row["what it does"] = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        found.append(row)
    return found


def main() -> None:
    """Print the three tables."""
    for rows in (memory_rows(), gain_rows(), plan_rows()):
        print(tabulate(rows, headers="keys", floatfmt=".1f", tablefmt="github", missingval="-"), end="\n\n")


if __name__ == "__main__":
    main()
