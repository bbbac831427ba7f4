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


def test_with_equal_policies_targets_are_returns():
    """TD(lambda) with lambda = 1: the values cancel, except that of the state after the last step."""
    log_ratios, rewards, discounts, values = random_sequences()
    targets, advantages = vtrace(torch.zeros_like(log_ratios), rewards, discounts, values)
    returns = values[-1]
    for step in reversed(range(STEPS)):
        returns = rewards[step] + discounts[step] * returns
        torch.testing.assert_close(targets[step], returns)
        torch.testing.assert_close(advantages[step], returns - values[step])


def test_nothing_of_the_next_episode_reaches_the_one_before():
    log_ratios, rewards, discounts, values = random_sequences()
    before = vtrace(log_ratios, rewards, discounts, values)
    rewards[4:, 1] += 100.0
    values[4:, 1] -= 100.0
    after = vtrace(log_ratios, rewards, discounts, values)
    assert torch.equal(before.targets[:4, 1], after.targets[:4, 1])
    assert torch.equal(before.advantages[:4, 1], after.advantages[:4, 1])
    assert not torch.equal(before.targets[4:, 1], after.targets[4:, 1])


def test_actions_that_the_policy_gave_up_count_little():
    """An action a thousand times less likely now than when it was played moves targets by a thousandth."""
    log_ratios, rewards, discounts, values = random_sequences()
    given_up = vtrace(torch.full_like(log_ratios, -6.9), rewards, discounts, values)
    assert (given_up.targets - values[:-1]).abs().max() < 0.01
    assert given_up.advantages.abs().max() < 0.01


def test_targets_are_constants_of_the_loss():
    log_ratios, rewards, discounts, values = random_sequences()
    targets, advantages = vtrace(log_ratios.requires_grad_(), rewards, discounts, values.requires_grad_())
    assert not targets.requires_grad
    assert not advantages.requires_grad
