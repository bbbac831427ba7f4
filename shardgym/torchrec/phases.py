"""Times of a sharded model's embedding collections in a step, by the phases of cost models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.types import ShardedModule

from shardgym.costs.plan_cost import PHASES

#: Number of timed passes; their median counts.
_PASSES = 3
#: Of the phases, the exchange of gradients.
_BACK = PHASES.index("backward_comm")

T = TypeVar("T")


class Call(NamedTuple):
    """A sharded collection, and its input in a call."""

    collection: ShardedModule[Any, Any, Any, Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Run `work` on all ranks at once; return its result and its time in ms."""
    dist.barrier()
    _wait_for(device)
    start = time.perf_counter()
    result = work()
    _wait_for(device)
    return result, 1000 * (time.perf_counter() - start)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Call]]:
    """Record the calls of a model's sharded collections while the block runs."""
    calls: list[Call] = []
    hooks = [
        module.register_forward_pre_hook(lambda *call: calls.append(Call(*call)), with_kwargs=True)
        for module in model.modules()
        if isinstance(module, ShardedModule)
    ]
    yield calls
    for hook in hooks:
        hook.remove()


def values_of(output: Any) -> list[torch.Tensor]:
    """Return a collection's output tensors: one of all pooled tables, or one of each unpooled feature."""
    values = output.values()
    return [values] if isinstance(values, torch.Tensor) else [rows.values() for rows in values]


def phases_ms(calls: Sequence[Call], device: torch.device, learning_rate: float) -> list[float]:
    """Return the times of calls by phase, in the order of `PHASES`; all ranks begin each phase together.

    Ranks therefore do not wait for slower ones, as they do in a step. The function trains the collections as steps do,
    with gradients of 1. Exchanges include joining and permuting outputs before and after. The extra time of the
    backward pass in which replicas exchange their gradients counts with the exchanges; the update of all of their rows,
    by SGD, counts with the backward pass.
    """
    copies = [m for call in calls for m in call.collection.modules() if isinstance(m, DistributedDataParallel)]
    replicas = [weights for module in copies for weights in module.parameters()]
    optimizer = torch.optim.SGD(replicas, lr=learning_rate) if replicas else None
    if optimizer is not None:
        optimizer.zero_grad()
    passes = []
    for _ in range(_PASSES):
        with ExitStack() as without_exchange:
            for module in copies:
                without_exchange.enter_context(module.no_sync())
            passes.append(_pass(calls, device, optimizer))
        if copies:
            passes[-1][_BACK] += max(0.0, _pass(calls, device, optimizer)[-1] - passes[-1][-1])
    return [float(ms) for ms in np.median(passes, axis=0)]


def _pass(calls: Sequence[Call], device: torch.device, optimizer: torch.optim.Optimizer | None) -> list[float]:
    contexts = [call.collection.create_context() for call in calls]
    pairs = list(zip(calls, contexts, strict=True))
    ids, ids_ms = timed(
        lambda: [of.input_dist(context, *given, **named).wait().wait() for (of, given, named), context in pairs], device
    )
    looked_up, forward_ms = timed(
        lambda: [call.collection.compute(context, own) for (call, context), own in zip(pairs, ids, strict=True)], device
    )
    leaves = [[values.detach().requires_grad_() for values in of_call] for of_call in looked_up]
    outputs, out_ms = timed(
        lambda: [
            values
            for (call, context), own in zip(pairs, leaves, strict=True)
            for values in values_of(call.collection.output_dist(context, own).wait())
        ],
        device,
    )
    ones = [torch.ones_like(values) for values in outputs]
    _, back_ms = timed(lambda: torch.autograd.backward(outputs, ones), device)
    reached = [
        (values, leaf.grad)
        for of_call, own in zip(looked_up, leaves, strict=True)
        for values, leaf in zip(of_call, own, strict=True)
        if leaf.grad is not None
    ]

    def train_tables() -> None:
        if reached:  # not on a rank without tables
            values, gradients = zip(*reached, strict=True)
            torch.autograd.backward(values, gradients)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    _, backward_ms = timed(train_tables, device)
    return [ids_ms, forward_ms, out_ms, back_ms, backward_ms]
