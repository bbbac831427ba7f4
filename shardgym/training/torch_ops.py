"""Torch as the simulator's networks are trained with it: their array functions, and one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.network import Ops


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


def _group_sum(x: torch.Tensor, groups: Groups) -> torch.Tensor:
    empty = x.new_zeros((*x.shape[:-2], len(groups), x.shape[-1]))
    return empty.index_add(-2, torch.from_numpy(groups.ids), x)


def _repeat(x: torch.Tensor, groups: Groups) -> torch.Tensor:
    return x.index_select(-2, torch.from_numpy(groups.ids))


#: Like `shardgym.costs.simulator.network.NUMPY`, over tensors.
TORCH = Ops(
    torch.exp, torch.log, torch.tanh, torch.relu, torch.maximum, torch.minimum, _clip, _concat, _group_sum, _repeat
)  # fmt: skip
