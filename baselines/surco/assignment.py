"""The differentiable assignment: the LP relaxation with an entropy term, with exact gradients, and its rounding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from baselines.learning.tables import TaskBatch

#: Newton steps for the prices of memory; it is convex, and mostly solved after ten.
_NEWTON_STEPS = 25
#: Keeps the Newton steps finite where all tables are on one device with certainty.
_DAMPING = 1e-4


class Assignment(NamedTuple):
    """A relaxed assignment and its rounding.

    Attributes:
        soft: share of every table on every device, with gradients, shape (B, T, D).
        devices: where the priced costs are lowest; may exceed memory by about a table per device, shape (B, T).
    """

    soft: Tensor
    devices: Tensor


def assign(costs: Tensor, batch: TaskBatch, temperature: float) -> Assignment:
    """Solve the relaxed assignment problem of each task.

        minimise  sum over t, d of  costs[t, d] x[t, d] + temperature x[t, d] log x[t, d]
        subject to  sum over d of x[t, d] = 1  and  sum over t of bytes[t] x[t, d] <= memory[d].

    With a price per device for memory, which is 0 where there is room, the solution is a softmax over devices of minus
    the priced costs. The prices are found by Newton's method on the dual problem. Gradients are those of the solution
    (implicit differentiation): one more Newton step, in which the costs are differentiable, changes the prices as the
    constraints ask for.

    Args:
        costs: shape (B, T, D).
        batch: the tasks.
        temperature: weight of the entropy; the linear program itself would have no gradient almost everywhere.
    """
    scaled = (costs / temperature).masked_fill(~batch.device_mask[:, None], torch.inf)
    # Shares of each device's memory; padded tables and devices have none.
    memory = batch.memory_bytes.clamp(min=1).float()
    shares = batch.table_bytes[..., None].float() / memory[:, None] * batch.device_mask[:, None]
    with torch.no_grad():
        prices = torch.zeros_like(memory)
        for _ in range(_NEWTON_STEPS):
            soft, excess = _solution(scaled, shares, prices)
            if bool(((excess <= 1e-5) & ((prices <= 0) | (excess >= -1e-5))).all()):
                break
            step = _newton_step(soft, shares, excess, (prices > 0) | (excess > 0))
            prices = (prices + step.clamp(-5.0, 5.0)).clamp(min=0.0)
        soft, _ = _solution(scaled, shares, prices)
    if costs.requires_grad and bool((prices > 0).any()):
        _, excess = _solution(scaled, shares, prices)
        change = _newton_step(soft, shares, excess, prices > 0)
        prices = prices + (change - change.detach())
    soft, _ = _solution(scaled, shares, prices)
    return Assignment(soft, (scaled + shares * prices[:, None]).argmin(dim=-1).detach())


def _solution(scaled: Tensor, shares: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relaxed assignment under prices, and by how much of its memory every device is over, (B, D)."""
    soft = torch.softmax(-(scaled + shares * prices[:, None]), dim=-1)
    return soft, (shares * soft).sum(dim=1) - 1.0


def _newton_step(soft: Tensor, shares: Tensor, excess: Tensor, active: Tensor) -> Tensor:
    """Return the change of the prices of active devices after which these are just full, shape (B, D)."""
    # Minus the derivative of the excess by the prices.
    held = shares * soft
    slope = torch.diag_embed((shares * held).sum(dim=1)) - held.transpose(1, 2) @ held
    both = active[:, :, None] & active[:, None]
    identity = torch.eye(slope.shape[-1])
    matrix = torch.where(both, slope, 0.0) + identity * torch.where(active, _DAMPING, 1.0)[:, None]
    step: Tensor = torch.linalg.solve(matrix, torch.where(active, excess, 0.0))
    return step


def straight_through(assignment: Assignment) -> Tensor:
    """Return the rounded assignment as 0 and 1 with the gradients of the relaxed one, shape (B, T, D)."""
    hard = torch.nn.functional.one_hot(assignment.devices, assignment.soft.shape[-1]).float()
    return assignment.soft + (hard - assignment.soft).detach()
