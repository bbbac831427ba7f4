"""DreamShard: its decision process respects memory, its gradients see the masks, and what it learns carries over."""

import math

import numpy as np
import pytest
import torch
from baseline_tasks import QUICK, small_tables, task_of

from baselines.dreamshard.solver import (
    DreamShard,
    DreamShardLearner,
    DreamShardNetwork,
    DreamShardSettings,
    log_probabilities,
    place_by_score,
    play,
)
from baselines.learning.encoder import FeatureScale, TaskBatch
from baselines.learning.training import Setup, TrainingOracle
from shardgym import NoFeasiblePlanError, make_cost
from shardgym.envs.tasks import training_tasks

COST = make_cost("roofline")


@pytest.fixture(scope="module")
def two_devices():
    return [task for task in training_tasks("tiny-v1", 50) if task.num_devices == 2]


@pytest.fixture
def network(two_devices):
    torch.manual_seed(0)
    return DreamShardNetwork(FeatureScale.of(two_devices[:5]))


def test_costs_are_learned(two_devices):
    tasks = two_devices[:16]
    torch.manual_seed(0)
    network = DreamShardNetwork(FeatureScale.of(tasks))
    settings = DreamShardSettings(collected_tasks=32, cost_updates=150, cost_batch=32)
    learner = DreamShardLearner(Setup(network, tasks, TrainingOracle(COST), 10, settings))
    learner._collect(np.random.default_rng(0))
    losses = learner._fit_costs(np.random.default_rng(1))
    assert 100 < learner.oracle.queries <= 128  # complete episodes alone
    batch = TaskBatch.of(two_devices[16:24])
    episodes = play(network, batch, 4, torch.Generator().manual_seed(0))
    errors = []
    for b, task in enumerate(two_devices[16:24]):
        for e in range(4):
            if episodes.complete[b, e]:
                ms = learner.oracle.price(task, episodes.table_devices()[b, e : e + 1, : task.num_tables].numpy())
                errors.append(abs(math.log(float(episodes.predicted_ms[b, e]) / ms[0].sum(axis=1).max())))
    assert np.median(errors) < 0.25
    assert set(losses) == {"loss_forward_compute", "loss_backward_compute", "loss_backward_comm", "loss_overall"}


def test_episodes_respect_memory_and_say_when_nothing_fits(network):
    sizes = (3, (3200, 3200)), (5, (1600, 4800)), (5, (3200, 3200))
    roomy, full, stuck = (task_of(small_tables(count), memory_bytes) for count, memory_bytes in sizes)
    episodes = play(network, TaskBatch.of([roomy, full, stuck]), 8, torch.Generator().manual_seed(1))
    assert episodes.complete[0].all()
    for b, task in enumerate((roomy, full, stuck)):
        devices = episodes.table_devices()[b]
        for e in range(8):
            held = [int((devices[e] == d).sum()) * 1600 for d in range(2)]
            assert all(used <= room for used, room in zip(held, task.topology.memory_bytes, strict=True))
            assert bool(episodes.complete[b, e]) == (int((devices[e] >= 0).sum()) == task.num_tables)
    assert not episodes.complete[2].any()
    assert (episodes.table_devices()[0, :, 3:] == -1).all()


def test_the_gradient_sees_the_probabilities_that_devices_were_drawn_with(network):
    batch = TaskBatch.of([task_of(small_tables(4), (1600, 4800))])
    episodes = play(network, batch, 64, torch.Generator().manual_seed(1))
    log_p = log_probabilities(network.policy, batch, episodes)
    p = log_p.exp()
    assert episodes.complete.all()
    assert not p[~episodes.allowed].any()
    torch.testing.assert_close(p.sum(dim=-1), torch.ones(1, 64, 4))
    # Once device 0 is full, device 1 is certain.
    full = (episodes.devices == 0).cumsum(dim=2) - (episodes.devices == 0).long() >= 1
    assert full.any()
    assert (p[..., 1][full] == 1).all()
    # The share of first draws agrees with the probability.
    drawn = (episodes.devices[0, :, 0] == 0).float().mean()
    assert abs(float(drawn) - p[0, 0, 0, 0].item()) < 0.2
    log_p.gather(3, episodes.devices[..., None]).sum().backward()
    assert all(torch.isfinite(w.grad).all() for w in network.policy.parameters())
    assert any(w.grad.abs().sum() > 0 for w in network.policy.parameters())


def test_episodes_that_are_predicted_to_take_equally_long_teach_nothing():
    task = task_of(small_tables(1), (3200, 3200), batch_size=64)
    torch.manual_seed(0)
    network = DreamShardNetwork(FeatureScale.of([task]))
    learner = DreamShardLearner(
        Setup(network, [task], TrainingOracle(COST), 10, DreamShardSettings(update_tasks=1, entropy=0.0))
    )
    assert learner._improve(np.random.default_rng(0))["policy_loss"] == 0.0


def test_training_tasks_that_nothing_fits_are_refused():
    task = task_of(small_tables(3), (2400, 2400))
    with pytest.raises(NoFeasiblePlanError, match=r"^whole tables fit in none of 16 episodes on 8 training t"):
        DreamShard(**QUICK["dreamshard"]).fit([task], COST, steps=1)


def test_what_solves_places_as_an_episode_of_training_by_the_highest_score():
    """Devices that hold nothing may change places: which of equal scores is larger is a matter of rounding."""
    torch.manual_seed(0)
    tasks = training_tasks(["tiny-v1", "dlrm4-v1"], 6)
    network = DreamShardNetwork(FeatureScale.of(tasks))
    used = 0
    for task in tasks:
        played = play(network, TaskBatch.of([task]), 1).table_devices()[0, 0].tolist()
        placed = place_by_score(network, task)
        assert len({*zip(played, placed, strict=True)}) == len({*played}) == len({*placed})
        used += len({*placed})
    assert used > 2 * len(tasks)
