"""Settings of a job's sharders that affect its tables, beside constraints.

TorchRec's planner takes the sharding types and kernels that both a collection's sharder and a table's constraints
allow. If a user's sharder allows others than TorchRec's, they become constraints of its tables, as does the
`output_dtype` of `fused_params`. Sharders' settings of optimisers and exchanges apply to all tables.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CommOp, ModuleSharder
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from shardgym.errors import InputError
from shardgym.tables.table import Optimizer
from shardgym.torchrec.constraints import Wish
from shardgym.torchrec.following import RUN_BY_TORCHREC

#: Sharders by the class of their collections.
Sharders = Mapping[type[nn.Module], ModuleSharder]

#: FBGEMM's optimisers that tasks know, by TorchRec's name for them.
_OPTIMIZERS: dict[Any, Optimizer] = {
    EmbOptimType.EXACT_SGD: "exact_sgd",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "rowwise_adagrad",
    EmbOptimType.EXACT_ADAGRAD: "adagrad",
    EmbOptimType.ADAM: "adam",
}
#: Output precisions that tables may have.
_OUTPUTS = {name: DataType[name] for name in ("FP32", "FP16", "BF16")}
#: `fused_params` that affect prices or memory but that no plan follows, and why.
NOT_FOLLOWED = {
    "cache_load_factor": "give it as cache_params of constraints",
    "cache_sets": "load factors set the rows of caches",
    "cache_reserved_memory": "give it as reserve in PlannerSettings",
    "cache_precision": "caches have the precision of their tables",
    "weights_precision": "tables have the precision of the model's",
    "optimizer_state_dtypes": "optimiser state is counted in FP32",
    "uvm_non_rowwise_momentum": "optimiser state is counted with its table",
    "prefetch_pipeline": "rows are priced as fetched before the forward pass",
}
#: The codecs of values between ranks, both ways.
_EXCHANGES: dict[type[nn.Module], tuple[Any, ...]] = {
    EmbeddingBagCollection: (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER),
    EmbeddingCollection: (CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL,),
}


def dedups(sharders: Sharders) -> bool:
    """Return whether a job deduplicates ids of unpooled tables, by a private setting of its sharder."""
    return bool(getattr(sharders.get(EmbeddingCollection), "_use_index_dedup", False))


def fused_optimizer(sharders: Sharders) -> Optimizer | None:
    """Return the optimiser in the sharders' `fused_params`; None without one."""
    found: set[Optimizer | None] = set()
    for sharder in sharders.values():
        kind = _fused_params(sharder).get("optimizer")
        if kind is not None and kind not in _OPTIMIZERS:
            known = ", ".join(optimizer.name for optimizer in _OPTIMIZERS)
            raise InputError(
                f"fused_params: optimizer {kind} is none of {known}: give a similar one in PlannerSettings"
            )
        found.add(None if kind is None else _OPTIMIZERS[kind])
    if len(found) > 1:
        raise InputError(
            "fused_params: sharders of the model's collections set different optimizers: give one in PlannerSettings, "
            "or attach one to each table with apply_optimizer_in_backward"
        )
    return next(iter(found), None)


def with_sharders(
    constraints: Mapping[str, ParameterConstraints], sharders: Mapping[str, ModuleSharder], device_type: str
) -> tuple[dict[str, ParameterConstraints], list[Wish]]:
    """Add what sharders allow to constraints; also return wishes in constraints that sharders do not allow.

    Args:
        constraints: constraints by table; tables may have none.
        sharders: sharders by table.
        device_type: device type of the job.
    """
    usual = {sharder.module_type: sharder for sharder in get_default_sharders()}
    found = {}
    wishes: list[Wish] = []
    for name, sharder in sharders.items():
        given = constraints.get(name, ParameterConstraints())
        changed, refused = _allowed(given, sharder, usual[sharder.module_type], device_type)
        wishes += [Wish(field, name, f"{type(sharder).__name__} has only {' or '.join(own)}") for field, own in refused]
        output = _fused_params(sharder).get("output_dtype")
        if output is not None and given.output_dtype is None:
            if output.name not in _OUTPUTS:
                raise InputError(f"fused_params: output_dtype {output} is none of {', '.join(_OUTPUTS)}")
            changed = dataclasses.replace(changed, output_dtype=_OUTPUTS[output.name])
        if name in constraints or changed != given:
            found[name] = changed
    return found, wishes


def _allowed(
    given: ParameterConstraints, sharder: ModuleSharder, usual: ModuleSharder, device_type: str
) -> tuple[ParameterConstraints, list[tuple[str, list[str]]]]:
    """Intersect constraints with a sharder, unless it is TorchRec's or allows as much.

    If they have nothing in common, the sharder wins, and the constraint's field and the sharder's values are returned.
    """
    refused = []
    types = given.sharding_types
    own = sharder.sharding_types(device_type)
    if set(own) != set(usual.sharding_types(device_type)):
        both = [kind for kind in own if kind in (types or own)]
        if not both:
            refused.append(("sharding_types", own))
        types = both or own
    kernels = given.compute_kernels
    of_kinds = {kind: sharder.compute_kernels(kind, device_type) for kind in types or sorted(RUN_BY_TORCHREC)}
    if any(set(of) != set(usual.compute_kernels(kind, device_type)) for kind, of in of_kinds.items()):
        wanted = {kind: [kernel for kernel in of if kernel in (kernels or of)] for kind, of in of_kinds.items()}
        if not any(wanted.values()):
            wanted = of_kinds
            refused.append(("compute_kernels", sorted(set().union(*wanted.values()))))
        types = [kind for kind, of in wanted.items() if of]
        kernels = sorted(set().union(*wanted.values()))
    return dataclasses.replace(given, sharding_types=types, compute_kernels=kernels), refused


def bytes_sent(sharders: Sharders) -> frozenset[int]:
    """Return the bytes per value between ranks by the sharders' codecs; 4 without a codec."""
    sizes = set()
    for collection, sharder in sharders.items():
        registry = sharder.qcomm_codecs_registry or {}
        for operation in _EXCHANGES[collection]:
            codecs = registry.get(operation.name)
            for codec in (None, None) if codecs is None else (codecs.forward, codecs.backward):
                sizes.add(4 if codec is None else codec.quantized_dtype.itemsize)
    return frozenset(sizes)


def not_followed(sharders: Sharders) -> list[Wish]:
    """Return settings of `fused_params` that no plan follows."""
    return [
        Wish(f"fused_params['{key}']", type(sharder).__name__, NOT_FOLLOWED[key])
        for sharder in sharders.values()
        for key, value in _fused_params(sharder).items()
        if key in NOT_FOLLOWED and value
    ]


def codecs_not_followed(sharders: Sharders, why: str) -> list[Wish]:
    """Return wishes for codecs of sharders that are not followed, with the reason."""
    return [
        Wish("qcomm_codecs_registry", type(sharder).__name__, why)
        for sharder in sharders.values()
        if sharder.qcomm_codecs_registry
    ]


def _fused_params(sharder: ModuleSharder) -> dict[str, Any]:
    return getattr(sharder, "fused_params", None) or {}
