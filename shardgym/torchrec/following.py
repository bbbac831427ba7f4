"""Repair of solvers' plans so that they obey rules of single tables, which solvers do not know.

Tables that a rule keeps in host memory are placed first; a solver then places the others, searching all plans. Each
table that breaks its rule is placed again in the allowed way with which the whole plan costs least. Afterwards, tables
of the slowest device are placed again as long as that makes the plan cheaper. A plan that cuts no table gets the same
treatment, and the cheaper of the two is kept. A table without a feasible allowed way stays as it was.

Solvers do not know that TorchRec permutes outputs where columns are cut, see `shardgym.costs.torchrec_steps`, and that
it needs pieces of one width, see `as_run`. A plan with such cuts is therefore compared with plans that cut less.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.torchrec_steps import permuted_columns, step_costs
from shardgym.errors import NO_PLAN
from shardgym.evaluation.solver import Solver, call_solver, make_solver
from shardgym.plans.plan import Kind, ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, ComputeKernel, Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.table_cuts import BY_ROWS, as_run

#: Kinds that TorchRec runs: all but "tiers".
RUN_BY_TORCHREC: frozenset[Kind] = frozenset(get_args(Kind)) - {"tiers"}
#: Kinds that cut rows.
ROW_KINDS: frozenset[Kind] = frozenset(BY_ROWS)

#: Kinds that cut columns.
CUT_KINDS: frozenset[Kind] = frozenset({"column_wise", "table_column_wise", "grid_shard"})

#: Plans that are tried at most to make one cheaper.
_MOST_TRIED = 3000
#: Plans without cuts are improved if they take up to so many times as long as the one with them.
_NEAR = 1.1
#: A change must save more than this share of the cost.
_LEAST_GAIN = 1e-9


class Rule(NamedTuple):
    """Allowed ways to shard a table."""

    kinds: frozenset[Kind] = RUN_BY_TORCHREC  #: allowed kinds, see `is_one_of`
    least_columns: int = 0  #: minimum width of a piece if columns are cut
    devices: frozenset[int] | None = None  #: devices that may hold it; all when None
    #: Allowed kernels, each with the share of rows that its cache has room for; any when empty.
    kernels: tuple[tuple[ComputeKernel, float], ...] = ()


#: The rule of unrestricted tables, if others need their room.
_NO_ROWS = Rule(frozenset({"table_wise", "column_wise", "table_column_wise"}))


def run_by_torchrec(table: EmbeddingTable, task: ShardingTask) -> frozenset[Kind]:
    """Return the kinds of a table that TorchRec can run, regardless of other tables of its collection.

    Unpooled tables have the types of an `EmbeddingCollection`, without replicas on CPUs, where FBGEMM's dense kernel
    pools. Every rank must get rows, or TorchRec fails.
    """
    kinds: set[Kind] = set(RUN_BY_TORCHREC)
    if not table.is_pooled:
        kinds -= {"table_row_wise", "grid_shard"}
        if task.topology.device.startswith("cpu"):
            kinds -= {"data_parallel"}
    if not _has_rows_for(table, task.num_devices):
        kinds -= {"row_wise"}
    if not _has_rows_for(table, len(_domains(task)[0])):
        kinds -= {"table_row_wise", "grid_shard"}
    return frozenset(kinds)


def _has_rows_for(table: EmbeddingTable, ranks: int) -> bool:
    """Return whether each rank gets rows if all but the last get ceil(rows / ranks)."""
    block = -(-table.num_embeddings // ranks)
    return (ranks - 1) * block < table.num_embeddings


def is_one_of(kind: Kind, kinds: Collection[str]) -> bool:
    """Return whether `kinds` allow a kind; `column_wise` also allows one piece, or pieces in one fast domain."""
    return kind in kinds or (kind in ("table_wise", "table_column_wise") and "column_wise" in kinds)


def can_be_on(kind: str, devices: frozenset[int], task: ShardingTask) -> bool:
    """Return whether a table can be of a kind if only these devices may hold it."""
    if kind in ("row_wise", "data_parallel"):
        return len(devices) == task.num_devices
    if kind in ("table_row_wise", "grid_shard"):
        return any(devices.issuperset(domain) for domain in _domains(task))
    return True


def obeys(plan: ShardingPlan, task: ShardingTask, table: EmbeddingTable, rule: Rule) -> bool:
    """Return whether a plan obeys the rule of a table."""
    shards = plan.of_table(table.name)
    if not is_one_of(plan.kind_of(table.name, task), rule.kinds):
        return False
    held = {device for shard in shards for device in shard.devices}
    if rule.devices is not None and not held <= rule.devices:
        return False
    if rule.kernels and any((s.compute_kernel, s.cache_load_factor) not in rule.kernels for s in shards):
        return False
    narrowest = min(shard.num_columns for shard in shards)
    return narrowest == table.embedding_dim or narrowest >= rule.least_columns


def solve_beside_host_tables(
    solver: Solver,
    task: ShardingTask,
    cost: CostModel,
    rules: Mapping[str, Rule],
    seed: int,
    time_limit_s: float | None = None,
) -> ShardingPlan:
    """Return a plan in which tables whose rules name kernels have the first of these, and a solver places the others.

    These tables stay whole. Those with most lookups come first, each on the device with the fewest lookups so far
    among those with room on device and host.
    """
    asked = [table for table in task.tables if table.name in rules and rules[table.name].kernels]
    topology = task.topology
    if not asked:
        return call_solver(solver, task, cost, seed, time_limit_s=time_limit_s)
    lookups = [0.0] * task.num_devices
    host_room = [topology.host_memory_bytes] * topology.num_hosts
    room = list(task.capacity_bytes)
    shards = []
    for table in sorted(asked, key=lambda table: -table.pooling_factor * table.embedding_dim):
        kernel, share = rules[table.name].kernels[0]
        shard = dataclasses.replace(Shard.whole(table, 0), compute_kernel=kernel, cache_load_factor=share)
        size = shard.bytes(task)
        host_size = shard.host_bytes(task)
        # If it fits nowhere, the plan's problems say which memory is short, and by how much.
        device = min(
            sorted(rules[table.name].devices or range(task.num_devices)),
            key=lambda d: (host_size > host_room[topology.host_of(d)] or size > room[d], lookups[d]),
        )
        lookups[device] += table.pooling_factor * table.embedding_dim
        host_room[topology.host_of(device)] -= host_size
        room[device] -= size
        shards.append(dataclasses.replace(shard, devices=(device,)))
    others = [table for table in task.tables if table not in asked]
    group_size = None
    if others:
        left = dataclasses.replace(topology, host_memory_bytes=max(0, min(host_room)))
        rest = call_solver(solver, task.part(room, others, left), cost, seed, time_limit_s=time_limit_s)
        shards += rest.shards
        group_size = rest.group_size
    return ShardingPlan.of(task, shards, group_size)


def follow(
    plan: ShardingPlan,
    task: ShardingTask,
    cost: CostModel,
    rules: Mapping[str, Rule],
    seed: int = 0,
    by_rows: Sequence[Mapping[str, Rule]] = (),
) -> ShardingPlan:
    """Repair a feasible plan so that it obeys rules, as far as possible.

    Args:
        plan: plan of a solver.
        task: task of the plan.
        cost: cost that decides between plans.
        rules: rules by table.
        seed: seed of the plan without cuts.
        by_rows: alternative rules that cut all tables of a collection by rows, for tables that must be cut together.
    """
    found = _followed(plan, task, cost, rules, seed)
    for of_rows in by_rows:
        changed = {**rules, **of_rows}
        tried = [(found, rules), (_all_by_rows(found, task, of_rows), changed)]
        if all(obeys(plan, task, task.table(name), rule) for name, rule in of_rows.items()):
            tried.append((plan, changed))
        totals = [answer.total_ms for answer in step_costs(cost, task, [one for one, _ in tried])]
        # What fits comes first, then what breaks the fewest rules.
        ranks = [
            (math.isinf(total), _broken(one, of, task), total) for (one, of), total in zip(tried, totals, strict=True)
        ]
        found, rules = tried[ranks.index(min(ranks))]
    run = as_run(found, task)
    if cost.additive() is not None and (run != found or permuted_columns(run, task)):
        run = _uncut(run, task, cost, rules, seed)
    return run


def _followed(
    plan: ShardingPlan, task: ShardingTask, cost: CostModel, rules: Mapping[str, Rule], seed: int
) -> ShardingPlan:
    # The solver placed other tables as if those in the memory of hosts took no time.
    beside_hosts = any(rule.kernels for rule in rules.values())
    if not beside_hosts and not _broken(plan, rules, task):
        return plan
    starts = [plan]
    with contextlib.suppress(*NO_PLAN):  # tables may not fit whole
        starts.append(make_solver("local_search", splits=False).solve(task, cost, seed))
    plans = [_mended(start, task, cost, rules) for start in starts]
    if cost.additive() is not None:  # others take too long, and measured ones differ from time to time
        plans = [_improved(mended, task, cost, rules) for mended in plans]
    return best_of(plans, task, cost, rules)


def best_of(
    plans: Sequence[ShardingPlan],
    task: ShardingTask,
    cost: CostModel,
    rules: Mapping[str, Rule],
    by_rows: Sequence[Mapping[str, Rule]] = (),
) -> ShardingPlan:
    """Return the plan that fits, breaks the fewest rules, and costs least; arguments as `follow`."""

    def broken(plan: ShardingPlan) -> int:
        of_all = rules
        for of_rows in by_rows:
            of_all = min(of_all, {**of_all, **of_rows}, key=lambda tried: _broken(plan, tried, task))
        return _broken(plan, of_all, task)

    totals = [answer.total_ms for answer in step_costs(cost, task, plans)]
    ranks = [(math.isinf(total), broken(plan), total) for plan, total in zip(plans, totals, strict=True)]
    return plans[ranks.index(min(ranks))]


def _uncut(
    plan: ShardingPlan, task: ShardingTask, cost: CostModel, rules: Mapping[str, Rule], seed: int
) -> ShardingPlan:
    """Return a plan with fewer tables cut by columns where one is found that costs less, else the plan."""
    asked_for = {name for name, rule in rules.items() if rule.kinds <= CUT_KINDS}
    cut = [table for table in task.tables if plan.kind_of(table.name, task) in CUT_KINDS]
    cut = [table for table in cut if table.name not in asked_for]
    everything = tuple(table.name for table in cut)
    unpooled = tuple(table.name for table in cut if not table.is_pooled)
    tried = [plan]
    for joined in filter(None, dict.fromkeys([everything, unpooled])):
        whole = {name: rules.get(name, Rule()) for name in joined}
        whole = {name: rule._replace(kinds=rule.kinds - CUT_KINDS) for name, rule in whole.items()}
        shards = [shard for shard in plan.shards if shard.table not in joined]
        for table in map(task.table, joined):
            widest = max(plan.of_table(table.name), key=lambda shard: shard.num_columns)
            shards.append(dataclasses.replace(widest, rows=(0, table.num_embeddings), columns=(0, table.embedding_dim)))
        candidate = ShardingPlan.of(task, shards, plan.group_size)
        before, after = step_costs(cost, task, [plan, candidate])
        tried.append(candidate)
        if not asked_for and after.total_ms < _NEAR * before.total_ms:
            tried.append(as_run(_improved(candidate, task, cost, {**rules, **whole}), task))
    if not asked_for:
        with contextlib.suppress(*NO_PLAN):
            tried.append(make_solver("local_search", splits=False).solve(task, cost, seed))
    return best_of(tried, task, cost, rules)


def _broken(plan: ShardingPlan, rules: Mapping[str, Rule], task: ShardingTask) -> int:
    """Return the number of tables whose rules a plan breaks."""
    return sum(not obeys(plan, task, task.table(name), rule) for name, rule in rules.items())


def _all_by_rows(plan: ShardingPlan, task: ShardingTask, rules: Mapping[str, Rule]) -> ShardingPlan:
    """Return a plan with some tables cut by rows over all devices."""
    shards = [shard for shard in plan.shards if shard.table not in rules]
    for name, rule in rules.items():
        table = task.table(name)
        shards += [
            dataclasses.replace(shard, compute_kernel=kernel, cache_load_factor=share)
            for shard in _by_rows(table, (0, table.embedding_dim), range(task.num_devices))
            for kernel, share in rule.kernels[:1] or (("fused", 0.0),)
        ]
    return ShardingPlan.of(task, shards, plan.group_size)


def _mended(plan: ShardingPlan, task: ShardingTask, cost: CostModel, rules: Mapping[str, Rule]) -> ShardingPlan:
    """Place tables that break their rules again, the largest first."""
    for table in sorted(task.tables, key=task.table_bytes, reverse=True):
        rule = rules.get(table.name)
        if rule is None or obeys(plan, task, table, rule):
            continue
        busy_ms = step_costs(cost, task, [plan])[0].per_device.sum(axis=1)
        tried = _with_table_elsewhere(plan, task, table, rule, busy_ms)
        if not tried:
            continue
        totals = [answer.total_ms for answer in step_costs(cost, task, tried)]
        best = min(range(len(tried)), key=lambda n: totals[n])
        if math.isfinite(totals[best]):
            plan = tried[best]
    return plan


def _improved(plan: ShardingPlan, task: ShardingTask, cost: CostModel, rules: Mapping[str, Rule]) -> ShardingPlan:
    """Place tables of the slowest device again, one at a time, as long as that makes the plan cheaper."""
    left = _MOST_TRIED
    now = step_costs(cost, task, [plan])[0]
    while left > 0 and now.feasible:
        busy_ms = now.per_device.sum(axis=1)
        names = {shard.table for shard in plan.on(int(busy_ms.argmax()))}
        tried = [
            candidate
            for table in task.tables
            if table.name in names
            for candidate in _with_table_elsewhere(plan, task, table, rules.get(table.name, _NO_ROWS), busy_ms)
        ]
        left -= len(tried)
        answers = step_costs(cost, task, tried)
        best = min(range(len(tried)), key=lambda n: answers[n].total_ms, default=None)
        if best is None or answers[best].total_ms >= now.total_ms * (1 - _LEAST_GAIN):
            break
        plan = tried[best]
        now = answers[best]
    return plan


def _with_table_elsewhere(
    plan: ShardingPlan, task: ShardingTask, table: EmbeddingTable, rule: Rule, busy_ms: Floats
) -> list[ShardingPlan]:
    """Return a plan for each allowed way to place a table, feasible or not."""
    others = [shard for shard in plan.shards if shard.table != table.name]
    ways = [
        [dataclasses.replace(shard, compute_kernel=kernel, cache_load_factor=share) for shard in shards]
        for shards in _ways(task, table, rule, busy_ms)
        for kernel, share in rule.kernels or (("fused", 0.0),)
    ]
    plans = [ShardingPlan.of(task, [*others, *shards], plan.group_size) for shards in ways]
    return [candidate for candidate in plans if obeys(candidate, task, table, rule)]


def _ways(task: ShardingTask, table: EmbeddingTable, rule: Rule, busy_ms: Floats) -> Iterator[list[Shard]]:
    """Yield ways to place a table on the least busy devices; the rule may forbid some."""
    devices = [d for d in np.argsort(busy_ms, kind="stable").tolist() if rule.devices is None or d in rule.devices]
    # Parts of fast domains that may hold the table, idle ones first, by their least busy device.
    parts = [([d for d in of if d in devices], of) for of in _domains(task)]
    parts = sorted((both for both in parts if both[0]), key=lambda both: min(map(devices.index, both[0])))
    domains = [mine for mine, _ in parts]
    complete = [of for mine, of in parts if mine == of]
    yield from ([Shard.whole(table, device)] for device in devices)
    yield _by_rows(table, (0, table.embedding_dim), range(task.num_devices))
    yield [Shard.whole(table, *range(task.num_devices))]
    yield from (_by_rows(table, (0, table.embedding_dim), of) for of in complete)
    for columns in _column_cuts(table, rule.least_columns):
        places = itertools.islice(itertools.cycle(devices), len(columns))
        yield [_block(table, piece, device) for piece, device in zip(columns, places, strict=True)]
        for of in domains:
            mine = sorted(of, key=lambda d: busy_ms[d])
            yield [_block(table, piece, d) for piece, d in zip(columns, itertools.cycle(mine), strict=False)]
        in_turn = zip(columns, itertools.cycle(complete), strict=False)
        if complete:
            yield [shard for piece, of in in_turn for shard in _by_rows(table, piece, of)]


def _domains(task: ShardingTask) -> list[list[int]]:
    size = task.topology.fast_domain_size
    devices = range(task.num_devices)
    return [list(devices[first : first + size]) for first in range(0, task.num_devices, size)]


def _block(table: EmbeddingTable, columns: tuple[int, int], device: int) -> Shard:
    return Shard(table.name, (0, table.num_embeddings), columns, (device,))


def _by_rows(table: EmbeddingTable, columns: tuple[int, int], devices: Sequence[int]) -> list[Shard]:
    """Return pieces of ceil(rows / devices) rows, as TorchRec cuts them."""
    block = -(-table.num_embeddings // len(devices))
    starts = range(0, table.num_embeddings, block)
    return [
        Shard(table.name, (start, min(start + block, table.num_embeddings)), columns, (device,))
        for start, device in zip(starts, devices, strict=False)
    ]


def _column_cuts(table: EmbeddingTable, least: int) -> Iterator[list[tuple[int, int]]]:
    """Yield cuts into 2, 4, 8, ... pieces of one width."""
    width = table.embedding_dim // 2
    while width >= max(least, COLUMN_UNIT) and width % COLUMN_UNIT == 0 and table.embedding_dim % width == 0:
        yield [(first, first + width) for first in range(0, table.embedding_dim, width)]
        width //= 2
