"""The fields of TorchRec's `ParameterConstraints`, and which of them a task or a plan does not follow.

The module knows all sixteen fields of TorchRec 1.8.0. If a field of a later version is set, a remark says that it is
not followed.

- *input*: pooling_factors, num_poolings, batch_sizes, is_weighted and feature_names describe the input of a table. A
  task has it as ids and bags per sample, and whether ids have weights.
- *output_dtype* is the precision of communication. A task has one for all tables.
- *placement*: sharding_types, min_partition, and compute_kernels that keep rows in host memory, with the load_factor of
  cache_params, become rules for the plan, see `following.py`. Other kernels and device_group are compared with it.
- *passed on*: enforce_hbm, stochastic_rounding, bounds_check_mode and output_dtype are settings of FBGEMM's operator.
  TorchRec's plan gets them unchanged; no cost depends on the first three.
- *refused*: kernel key_value with its key_value_params, and use_virtual_table, keep rows in other memories.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ParameterSharding
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_configs import DataType

from shardgym.costs.base import CostModel
from shardgym.errors import InputError, UnknownNameError, short_repr
from shardgym.plans.plan import Kind
from shardgym.plans.shard import ComputeKernel, format_devices
from shardgym.tables.table import EmbeddingTable, Precision
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.following import (
    CUT_KINDS,
    ROW_KINDS,
    RUN_BY_TORCHREC,
    Rule,
    can_be_on,
    is_one_of,
    run_by_torchrec,
)
from shardgym.torchrec.model_tables import ModelTable, join_name, split_name
from shardgym.torchrec.sharding_plan import DEFAULT_CACHE_LOAD_FACTOR
from shardgym.torchrec.table_cuts import RIGHT_MEANS

#: Fields by what is done with them.
_INPUT = ("pooling_factors", "num_poolings", "batch_sizes", "is_weighted", "feature_names")
_PLACEMENT = ("sharding_types", "min_partition", "compute_kernels", "cache_params", "device_group")
_PASSED_ON = ("enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")
_OUTSIDE = ("key_value_params", "use_virtual_table")

_KERNELS = frozenset(kernel.value for kernel in EmbeddingComputeKernel)
#: Where kernels keep rows, if not on the device.
_WHERE = {"fused_uvm": "in the memory of the host", "fused_uvm_caching": "in the memory of the host"}

#: The reason for fields that only a plan can follow, where there is no plan.
NEEDS_PLAN = "a task does not hold them, but ShardGymPlanner follows them"


class Wish(NamedTuple):
    """A field of a table's constraints that is not followed, with the reason."""

    field: str
    table: str
    why: str


class TableInput(NamedTuple):
    """The input of one table by its constraints."""

    pooling_factor: float | None  #: ids per sample, of all features together; None if unknown
    num_features: int  #: bags per sample
    weighted: bool  #: whether ids have weights
    wishes: tuple[Wish, ...]  #: fields that a task cannot hold


def in_words(wishes: Iterable[Wish]) -> list[str]:
    """Return a sentence for each reason, which names the first table and counts the others."""
    # Of several reasons for a field of a table the first one counts.
    first = {(wish.field, wish.table): wish for wish in reversed(list(wishes))}
    fields: dict[tuple[str, str], list[str]] = {}
    for wish in reversed(first.values()):
        fields.setdefault((wish.field, wish.why), []).append(wish.table)
    return [
        f"{field} of '{tables[0]}'{f' and {len(tables) - 1} more' if tables[1:] else ''} "
        f"{'are' if tables[1:] else 'is'} not followed: {why}"
        for (field, why), tables in fields.items()
    ]


def input_of(constraint: ParameterConstraints, table: ModelTable, samples_of_rank: float) -> TableInput:
    """Return the input of a table by its constraints.

    A bag per sample and feature is one pooling. A feature with several poolings, or with a batch size of its own, has
    several bags per sample of a rank's batch, and its pooling factor is the mean size of a bag.
    """
    features = table.config.feature_names
    default = ParameterConstraints().pooling_factors
    lists = {
        "pooling_factors": None if constraint.pooling_factors == default else constraint.pooling_factors,
        "num_poolings": constraint.num_poolings,
        "batch_sizes": constraint.batch_sizes,
    }
    for name, numbers in lists.items():
        is_each = isinstance(numbers, Sequence) and [number >= 0 for number in numbers] == [True] * len(features)
        if numbers is not None and not is_each:
            raise InputError(
                f"constraints of table '{table.name}': {name}: expected a number for each of its {len(features)} "
                f"features, at least 0, got {short_repr(numbers)}"
            )
    poolings = lists["num_poolings"] or [1.0] * len(features)
    sizes = lists["batch_sizes"] or [samples_of_rank] * len(features)
    bags = [pooling * size / samples_of_rank for pooling, size in zip(poolings, sizes, strict=True)]
    total = math.fsum(bags)
    num_features = max(1, round(total))
    wishes = []
    if abs(total - num_features) > 1e-9:
        field = "batch_sizes" if lists["batch_sizes"] else "num_poolings"
        why = f"they make {total:.6g} bags per sample, but tasks need a whole number, here {num_features}"
        wishes.append(Wish(field, table.name, why))
    if constraint.feature_names is not None and sorted(constraint.feature_names) != sorted(features):
        wishes.append(Wish("feature_names", table.name, f"the model's table has features {', '.join(features)}"))
    factors = lists["pooling_factors"]
    is_known = factors is not None or bags != [1.0] * len(features)
    ids = math.fsum(factor * bag for factor, bag in zip(factors or [1.0] * len(features), bags, strict=True))
    return TableInput(ids if is_known else None, num_features, bool(constraint.is_weighted), tuple(wishes))


def output_precision(constraints: Mapping[str, ParameterConstraints], num_tables: int) -> tuple[Precision, list[Wish]]:
    """Return the precision of communication, "fp16" if all tables ask for two bytes, and wishes not followed."""
    wanted = {name: constraint.output_dtype for name, constraint in constraints.items()}
    if len(wanted) == num_tables and all(dtype in (DataType.FP16, DataType.BF16) for dtype in wanted.values()):
        return "fp16", [Wish("output_dtype", name, NEEDS_PLAN) for name in wanted]
    why = "a task communicates all tables in one precision, FP32, or two bytes where all tables ask for FP16 or BF16"
    others = [name for name, dtype in wanted.items() if dtype not in (None, DataType.FP32)]
    return "fp32", [Wish("output_dtype", name, why) for name in others]


def not_in_task(constraints: Mapping[str, ParameterConstraints]) -> list[Wish]:
    """Return wishes other than input that a task does not hold, or that nothing can follow."""
    default = ParameterConstraints()
    wishes = []
    for name, constraint in constraints.items():
        for field in (of.name for of in dataclasses.fields(constraint)):
            if getattr(constraint, field) == getattr(default, field, None):
                continue
            if field in _PLACEMENT or (field in _PASSED_ON and field != "output_dtype"):
                wishes.append(Wish(field, name, NEEDS_PLAN))
            elif field in _OUTSIDE:
                wishes.append(Wish(field, name, "tables are kept in the memory of devices and hosts"))
            elif field not in _INPUT and field not in _PASSED_ON:
                wishes.append(Wish(field, name, "ShardGym does not know this field"))
    return wishes


class Rules(NamedTuple):
    """Rules of tables whose sharding is restricted."""

    of_tables: dict[str, Rule]
    #: Rules that cut all tables by rows, for each collection with mean-pooled tables that allows it.
    by_rows: list[dict[str, Rule]]
    wishes: list[Wish]  #: wishes that no plan can follow


def rules_of(
    task: ShardingTask,
    constraints: Mapping[str, ParameterConstraints],
    pins: Mapping[str, int | Sequence[int]],
    cost: CostModel,
) -> Rules:
    """Return the rules of tables whose sharding is restricted, and wishes that no plan can follow."""
    not_in_host = "" if cost.host_memory else f"cost '{cost.name}' does not price host memory"
    if not task.topology.host_memory_bytes:
        not_in_host = "the topology's hosts have no memory; give host_memory_bytes of a shardgym.Topology"
    rules: dict[str, Rule] = {}
    wishes = []
    possible = {table.name: run_by_torchrec(table, task) for table in task.tables}
    for table in task.tables:
        constraint = constraints.get(table.name, ParameterConstraints())
        kinds = possible[table.name]
        if types := frozenset(constraint.sharding_types or ()):
            if unknown := sorted(types - RUN_BY_TORCHREC):
                raise UnknownNameError(f"sharding type of table '{table.name}'", unknown[0], sorted(RUN_BY_TORCHREC))
            kinds = kinds & types
            if not kinds:
                wishes.append(Wish("sharding_types", table.name, _why_none(table, types)))
                kinds = possible[table.name]
        if mistaken := sorted(set(constraint.compute_kernels or ()) - _KERNELS):
            raise UnknownNameError(f"compute kernel of table '{table.name}'", mistaken[0], _KERNELS)
        kinds = _with_kernels(kinds, constraint.compute_kernels) or kinds
        devices = None
        if table.name in pins:
            pin = pins[table.name]
            devices = frozenset(pin if isinstance(pin, Sequence) else [pin])
            if not devices or not devices <= set(range(task.num_devices)):
                expected = f"expected ranks from 0 to {task.num_devices - 1}"
                raise InputError(f"pins: table '{table.name}': {expected}, got {short_repr(pin)}")
            possible[table.name] = frozenset(k for k in possible[table.name] if can_be_on(k, devices, task))
            if not kinds & possible[table.name]:
                ranks = format_devices(sorted(devices)).replace("device", "rank")
                why = f"{' or '.join(sorted(kinds))} needs ranks outside of its pin, {ranks}; the pin takes precedence"
                wishes.append(Wish("sharding_types", table.name, why))
            kinds = kinds & possible[table.name] or possible[table.name]
        in_hosts = _kernels_in_host(constraint)
        if in_hosts and not_in_host:
            in_hosts = ()
            if "dense" not in (constraint.compute_kernels or ()):  # which a table on all ranks may follow
                wishes.append(Wish("compute_kernels", table.name, not_in_host))
        least = constraint.min_partition or 0
        if least > table.embedding_dim:
            wishes.append(Wish("min_partition", table.name, f"it has {table.embedding_dim} columns and stays uncut"))
        rules[table.name] = Rule(kinds, least, devices, in_hosts)
    by_rows = []
    for members in _with_mean_pooling(task):
        of_rows = {name: rules[name]._replace(kinds=rules[name].kinds.intersection(RIGHT_MEANS)) for name in members}
        others = [name for name, rule in of_rows.items() if not rule.kinds]
        mean = [name for name in members if task.table(name).pooling == "mean"]
        asked = [name for name in mean if rules[name].kinds <= ROW_KINDS]
        if asked and not others:
            rules |= of_rows
            continue
        for name in mean:
            kinds = rules[name].kinds
            if name in asked:
                why = (
                    "TorchRec divides mean-pooled tables that are cut by rows by the wrong bag sizes, unless all of "
                    f"their collection are row_wise or table_row_wise, which '{others[0]}' cannot be"
                )
                wishes.append(Wish("sharding_types", name, why))
                kinds = possible[name]
            rules[name] = rules[name]._replace(kinds=kinds - ROW_KINDS)
        if all("row_wise" in rule.kinds for rule in of_rows.values()):
            by_rows.append(of_rows)
    return Rules({name: rule for name, rule in rules.items() if rule != Rule()}, by_rows, wishes)


def _why_none(table: EmbeddingTable, types: frozenset[str]) -> str:
    """Say why TorchRec can run a table in none of these sharding types."""
    if not table.is_pooled and "row_wise" not in types:
        return "TorchRec has no such type for an EmbeddingCollection"
    return "it has too few rows for all ranks, and TorchRec fails on a rank without rows"


def _with_kernels(kinds: frozenset[Kind], kernels: Sequence[str] | None) -> frozenset[Kind]:
    """Return the kinds that allow one of the kernels: replicas need kernel dense, which no other kind allows."""
    if not kernels:
        return kinds
    return frozenset(
        kind for kind in kinds if ("dense" in kernels if kind == "data_parallel" else set(kernels) != {"dense"})
    )


def _with_mean_pooling(task: ShardingTask) -> Iterable[list[str]]:
    """Return the tables of each collection with mean-pooled tables."""
    collections: dict[str, list[str]] = {}
    for table in task.tables:
        collections.setdefault(split_name(table.name)[0], []).append(table.name)
    return [members for members in collections.values() if any(task.table(name).pooling == "mean" for name in members)]


def _kernels_in_host(constraint: ParameterConstraints) -> tuple[tuple[ComputeKernel, float], ...]:
    """Return the kernels of a table that constraints allow only in host memory."""
    kernels = constraint.compute_kernels or ["fused"]
    if "fused" in kernels:
        return ()
    params = constraint.cache_params
    share = DEFAULT_CACHE_LOAD_FACTOR if params is None or params.load_factor is None else params.load_factor
    found: list[tuple[ComputeKernel, float]] = [("fused_uvm_caching", share), ("fused_uvm", 0.0)]
    return tuple((kernel, part) for kernel, part in found if kernel in kernels)


def apply_constraints(
    constraints: Mapping[str, ParameterConstraints],
    plan: TorchRecPlan,
    kinds: Mapping[str, Kind],
    *,
    device_type: str,
    output_fp16: bool,
) -> list[Wish]:
    """Set the fields that FBGEMM's operators take in TorchRec's plan, and return the wishes that it does not follow.

    `kinds` decide whether a sharding type is followed: TorchRec's plan may use an equivalent type that other tables of
    the collection have.
    """
    wishes: list[Wish] = []
    for path, module in plan.plan.items():
        for table, sharding in list(module.items()):
            name = join_name(path, table)
            constraint = constraints.get(name)
            if constraint is None:
                continue
            passed_on = {field: getattr(constraint, field) for field in _PASSED_ON}
            if not output_fp16:
                del passed_on["output_dtype"]  # FP32 without it
            if sharding.cache_params is not None and constraint.cache_params is not None:
                share = sharding.cache_params.load_factor
                passed_on["cache_params"] = dataclasses.replace(constraint.cache_params, load_factor=share)
            module[table] = dataclasses.replace(sharding, **passed_on)
            wishes += _not_followed(name, constraint, kinds[name], module[table], device_type)
    return wishes


def _not_followed(
    name: str, constraint: ParameterConstraints, kind: Kind, sharding: ParameterSharding, device_type: str
) -> list[Wish]:
    wishes = []
    types = constraint.sharding_types
    if types and not is_one_of(kind, types):
        why = f"no plan was found in which it is {' or '.join(types)}; it is {kind}"
        wishes.append(Wish("sharding_types", name, why))
    kernels = constraint.compute_kernels
    if kernels and sharding.compute_kernel not in kernels:
        where = _WHERE.get(sharding.compute_kernel, "in the memory of the device")
        why = f"the plan has kernel {sharding.compute_kernel}, which keeps rows {where}"
        wishes.append(Wish("compute_kernels", name, why))
    if constraint.cache_params is not None and sharding.cache_params is None:
        why = f"the plan has kernel {sharding.compute_kernel}, which has no cache"
        wishes.append(Wish("cache_params", name, why))
    least = constraint.min_partition
    if least and kind in CUT_KINDS:
        widths = [shard.shard_sizes[1] for shard in sharding.sharding_spec.shards]
        if min(widths) < least:
            wishes.append(Wish("min_partition", name, f"no plan was found with it; a shard has {min(widths)} columns"))
    if constraint.device_group not in (None, device_type):
        wishes.append(Wish("device_group", name, f"the topology's devices are of type {device_type}"))
    return wishes
