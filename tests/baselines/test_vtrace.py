"""V-trace against the sum that defines it, and against plain returns."""

import pytest
import torch

from baselines.autoshard.vtrace import vtrace

STEPS, SEQUENCES = 7, 3


def random_sequences(seed=0):
    """Sequences with an episode that ends in the middle of the second one."""
    generator = torch.Generator().manual_seed(seed)
    log_ratios = torch.randn(STEPS, SEQUENCES, generator=generator)
    rewards = torch.randn(STEPS, SEQUENCES, generator=generator)
    discounts = torch.full((STEPS, SEQUENCES), 0.9)
    discounts[3, 1] = 0.0
    values = torch.randn(STEPS + 1, SEQUENCES, generator=generator)
    return log_ratios, rewards, discounts, values


def by_definition(log_ratios, rewards, discounts, values, rho_clip, c_clip):
    """Equation 1 of the paper, term by term: v_s = V(s) + sum over t of gamma^(t-s) (prod c_i) delta_t."""
    targets = values[:-1].clone()
    for n in range(SEQUENCES):
        for s in range(STEPS):
            for t in range(s, STEPS):
                weight = 1.0
                for i in range(s, t):
                    weight *= discounts[i, n] * min(c_clip, log_ratios[i, n].exp())
                rho = min(rho_clip, log_ratios[t, n].exp())
                delta = rho * (rewards[t, n] + discounts[t, n] * values[t + 1, n] - values[t, n])
                targets[s, n] += weight * delta
    return targets


@pytest.mark.parametrize(("rho_clip", "c_clip"), [(1.0, 1.0), (2.0, 0.5), (0.3, 0.3)])
def test_targets_are_those_of_the_definition(rho_clip, c_clip):
    sequences = random_sequences()
    targets, advantages = vtrace(*sequences, rho_clip=rho_clip, c_clip=c_clip)
    expected = by_definition(*sequences, rho_clip, c_clip)
    torch.testing.assert_close(targets, expected)
    log_ratios, rewards, discounts, values = sequences
    following = torch.cat([expected[1:], values[-1:]])
    rho = log_ratios.exp().clamp(max=rho_clip)
    torch.testing.assert_close(advantages, rho * (rewards + discounts * following - values[:-1]))
