"""Torch as the simulator's networks are trained with it: their array functions, and one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.oracle import ComputeNet, Ops, Params


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, so that sums are always added up in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor(array: Floats) -> torch.Tensor:
    """Return an array in the single precision that networks are trained in."""
    return torch.from_numpy(array).float()


def _clip(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return x.clamp(low, high)


def _concat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    lead = np.broadcast_shapes(*(tuple(part.shape[:-1]) for part in parts))
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], dim=-1)


#: Like `shardgym.costs.simulator.oracle.NUMPY`, over tensors.
TORCH = Ops(torch.exp, torch.log, torch.tanh, torch.relu, torch.maximum, torch.minimum, _clip, _concat)


def log_ms_of(
    params: Params, features: torch.Tensor, amounts: torch.Tensor, groups: Groups, context: torch.Tensor
) -> torch.Tensor:
    """Return the logarithms of forward and backward ms of whole devices of contexts (G, 1), shape (K, G, 2)."""
    network = ComputeNet(params, TORCH)
    ids = torch.from_numpy(groups.ids)
    latents = network.encode(features, amounts, context.index_select(-2, ids))
    empty = latents.new_zeros((*latents.shape[:-2], len(groups), latents.shape[-1]))
    sums: torch.Tensor = empty.index_add(-2, ids, latents)
    log_ms: torch.Tensor = network.head(sums, context)
    return log_ms
