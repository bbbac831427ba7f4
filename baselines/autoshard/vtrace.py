"""V-trace: value targets and advantages from episodes that an older policy played (IMPALA, arXiv:1802.01561)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """What an update of the policy needs of every step.

    Attributes:
        targets: of the values, v_s in the paper, shape (T, N).
        advantages: of the actions taken, times the clipped ratio rho_s: weights of the policy gradient, shape (T, N).
    """

    targets: Tensor
    advantages: Tensor


@torch.no_grad()
def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """Return V-trace targets and advantages of N sequences of T steps (equation 1 and section 4.2 of the paper).

    With equal policies (log ratios of 0) the targets are returns: the sums of discounted rewards, plus the value of the
    state after the last step where that does not end the episode. Nothing here is differentiated.

    Args:
        log_ratios: log of the probability of the action taken by the policy that learns, less that by the policy that
            played, shape (T, N).
        rewards: shape (T, N).
        discounts: of what follows each step, 0 where it ends the episode, shape (T, N).
        values: of the states before each step and of the one after the last, shape (T + 1, N).
        rho_clip: upper limit of the ratios that weigh temporal differences. It decides which policy is valued.
        c_clip: upper limit of the ratios that carry differences back. It decides how fast that is learned.
    """
    ratios = log_ratios.exp()
    rho = ratios.clamp(max=rho_clip)
    carried = discounts * ratios.clamp(max=c_clip)
    differences = rho * (rewards + discounts * values[1:] - values[:-1])
    targets = values.clone()
    for step in reversed(range(len(rewards))):
        targets[step] += differences[step] + carried[step] * (targets[step + 1] - values[step + 1])
    advantages = rho * (rewards + discounts * targets[1:] - values[:-1])
    return VTrace(targets[:-1], advantages)
