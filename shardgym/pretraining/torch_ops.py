"""The array operations that networks need, on torch tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.network import Ops, Params


def _clip(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return x.clamp(low, high)


def _concat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    lead = np.broadcast_shapes(*(tuple(part.shape[:-1]) for part in parts))
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], dim=-1)


def _group_sum(x: torch.Tensor, groups: Groups) -> torch.Tensor:
    empty = x.new_zeros((*x.shape[:-2], len(groups), x.shape[-1]))
    return empty.index_add(-2, torch.from_numpy(groups.ids), x)


def _group_max(x: torch.Tensor, groups: Groups) -> torch.Tensor:
    least = x.new_full((*x.shape[:-2], len(groups), x.shape[-1]), -torch.inf)
    index = torch.from_numpy(groups.ids)[:, None].expand(x.shape)
    return least.scatter_reduce(-2, index, x, "amax")


def _repeat(x: torch.Tensor, groups: Groups) -> torch.Tensor:
    return x.index_select(-2, torch.from_numpy(groups.ids))


TORCH = Ops(torch.exp, torch.log, torch.tanh, torch.relu, _clip, _concat, _group_sum, _group_max, _repeat)


def initial_layers(
    sizes: dict[str, tuple[int, ...]], members: int, generator: torch.Generator, zero_last: Sequence[str] = ()
) -> Params:
    """Return weights for `dense`, drawn uniformly as torch's linear layers draw theirs.

    Args:
        sizes: widths of each chain's layers, the input's first.
        members: networks that are trained together.
        generator: random state.
        zero_last: chains whose last layer starts at 0, so that corrections start at none.
    """
    params: Params = {}
    for name, widths in sizes.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            last = layer == len(widths) - 2 and name in zero_last
            bound = 0.0 if last else inputs**-0.5
            for part, shape in (("weight", (members, inputs, outputs)), ("bias", (members, 1, outputs))):
                drawn = torch.empty(shape).uniform_(-1, 1, generator=generator)
                params[f"{name}.{layer}.{part}"] = (drawn * bound).requires_grad_()
    return params
