"""AutoShard: its episodes respect memory, its learner sees what its actors saw, and what it learns carries over."""

import numpy as np
import pytest
import torch
from baseline_tasks import QUICK, small_tables, task_of

from baselines.autoshard.policy import AutoShardNetwork, DeviceLoads, place_by_score, play
from baselines.autoshard.solver import STUCK, AutoShardLearner, AutoShardSettings, balance, vtrace
from baselines.learning.encoder import FeatureScale, TaskBatch
from baselines.learning.training import Setup, TrainingOracle
from shardgym import PlanCost, ShardingPlan, make_cost
from shardgym.envs.tasks import training_tasks
from shardgym.envs.vector_env import TableWiseVectorEnv

COST = make_cost("roofline")


@pytest.fixture(scope="module")
def two_devices():
    return [task for task in training_tasks("tiny-v1", 12) if task.num_devices == 2]


@pytest.fixture
def network(two_devices):
    torch.manual_seed(0)
    return AutoShardNetwork(FeatureScale.of(two_devices[:5]))


def make_learner(tasks, **settings):
    torch.manual_seed(0)
    network = AutoShardNetwork(FeatureScale.of(tasks))
    settings = AutoShardSettings(**QUICK["autoshard"] | settings)
    return AutoShardLearner(Setup(network, tasks, TrainingOracle(COST), 10, settings))


def play_all(network, tasks, num_envs, seed=1):
    envs = TableWiseVectorEnv(num_envs, tasks=tasks, cost=COST, order="task")
    envs.reset(seed=0)
    return play(network, envs, tasks, TaskBatch.of(tasks), torch.Generator().manual_seed(seed))


def test_episodes_respect_memory_and_say_when_nothing_fits(network):
    sizes = (3, (3200, 3200)), (4, (1600, 6400)), (5, (3200, 3200))
    tasks = [task_of(small_tables(count), memory_bytes) for count, memory_bytes in sizes]
    played = play_all(network, tasks, 24)
    assert played.task.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    devices = played.table_devices()
    for n, task in enumerate(played.task.tolist()):
        held = [int((devices[n] == d).sum()) * 1600 for d in range(2)]
        assert all(used <= room for used, room in zip(held, tasks[task].topology.memory_bytes, strict=True))
        assert (played.costs[n] is None) == (task == 2)
        if task != 2:
            placed = devices[n][: tasks[task].num_tables].tolist()
            [cost] = COST.evaluate(tasks[task], [ShardingPlan.table_wise(tasks[task], placed)])
            assert played.costs[n].total_ms == pytest.approx(cost.total_ms)
    assert (devices[:8, 3:] == -1).all()
    # Device 0 holds one table of the second task.
    assert played.allowed[8:16, 0].all()
    assert not played.allowed[8:16, :4].all()


def test_the_learner_finds_the_probabilities_that_the_actors_drew_with(two_devices, monkeypatch):
    """Before its first update all ratios are 1; after it they are not, and V-trace gets to know."""
    learner = make_learner(two_devices[:6], learning_rate=0.01)
    seen = []

    def watched(log_ratios, *rest):
        seen.append(log_ratios)
        return vtrace(log_ratios, *rest)

    monkeypatch.setattr("baselines.autoshard.solver.vtrace", watched)
    learner.step(0, np.random.default_rng(0))
    first, second = seen
    assert first.abs().max() < 1e-4
    assert second.abs().max() > 1e-3


def test_rewards_are_earned_in_the_last_step(network, two_devices):
    tasks = [task_of(small_tables(count), (3200, 3200)) for count in (3, 5)]
    played = play_all(network, tasks, 4)
    learner = make_learner(tasks[:1])
    rewards, discounts = learner._rewards(played)
    for n, cost in enumerate(played.costs):
        steps = int((played.devices[n] >= 0).sum())
        assert discounts[n].tolist() == [1.0] * (steps - 1) + [0.0] * (rewards.shape[1] - steps + 1)
        assert rewards[n].count_nonzero() <= 1
        assert rewards[n, steps - 1] == (STUCK if cost is None else balance(cost))


def test_the_reward_is_the_balance_of_compute():
    """Devices of 2 + 3 and 16 + 4 ms of compute; the second one communicates for 10 ms."""
    cost = PlanCost(np.array([[0, 2, 1, 2, 3], [0, 16, 6, 4, 4]]), cost="toy", version="1", hardware="none")
    assert balance(cost) == pytest.approx(5 / 20)


@torch.no_grad()
def test_what_solves_takes_the_highest_score_of_the_network(network, two_devices):
    row = torch.zeros(1, dtype=torch.int64)
    for task in [*two_devices[:3], *training_tasks("dlrm4-v1", 1)]:
        placed = place_by_score(network, task)
        batch = TaskBatch.of([task])
        tables = network.read(batch, network.sort(batch))
        held = DeviceLoads(network, batch.memory_bytes, tables.even_ms)
        for t, number in enumerate(tables.order[0].tolist()):
            scores = network.scores(tables.states[:, t], network.actions(held.sums, held.loads(row)))[0]
            fits = (held.used + tables.sizes[:, t, None] <= batch.memory_bytes)[0]
            assert fits[placed[number]]
            assert float(scores[placed[number]]) == pytest.approx(float(scores[fits].max()), abs=1e-5)
            held.place(row, torch.tensor([placed[number]]), tables.latents[:, t], tables.sizes[:, t])
        assert len(set(placed)) > 1


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


def by_definition(log_ratios, rewards, discounts, values):
    """Equation 1 of the paper, term by term: v_s = V(s) + sum over t of gamma^(t-s) (prod c_i) delta_t."""
    targets = values[:-1].clone()
    for n in range(SEQUENCES):
        for s in range(STEPS):
            for t in range(s, STEPS):
                weight = 1.0
                for i in range(s, t):
                    weight *= discounts[i, n] * min(1.0, log_ratios[i, n].exp())
                rho = min(1.0, log_ratios[t, n].exp())
                delta = rho * (rewards[t, n] + discounts[t, n] * values[t + 1, n] - values[t, n])
                targets[s, n] += weight * delta
    return targets


def test_targets_are_those_of_the_definition():
    sequences = random_sequences()
    targets, advantages = vtrace(*sequences)
    expected = by_definition(*sequences)
    torch.testing.assert_close(targets, expected)
    log_ratios, rewards, discounts, values = sequences
    following = torch.cat([expected[1:], values[-1:]])
    rho = log_ratios.exp().clamp(max=1.0)
    torch.testing.assert_close(advantages, rho * (rewards + discounts * following - values[:-1]))
