"""SurCo: its assignment has exact gradients, they reach the surrogate costs, and what is deployed fits into memory."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from baseline_tasks import QUICK, task_of

from baselines.learning.encoder import FeatureScale, TaskBatch
from baselines.learning.training import Setup, TrainingOracle
from baselines.surco.network import SurCoNetwork, assign, load_features, straight_through
from baselines.surco.solver import SurCo, SurCoLearner, SurCoSettings, cheapest_assignment, improve
from shardgym import NoFeasiblePlanError, make_cost
from shardgym.envs.tasks import training_tasks

COST = make_cost("roofline")


@pytest.fixture(scope="module")
def tasks():
    return training_tasks("tiny-v1", 8)


@pytest.fixture(scope="module")
def fitted(tasks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("surco")
    SurCo(**QUICK["surco"]).fit(tasks[:4], COST, steps=2).save(folder)
    return folder


@pytest.fixture
def network(tasks):
    torch.manual_seed(0)
    return SurCoNetwork(FeatureScale.of(tasks[:5]))


def with_memory(task, share):
    """The task on two devices that have `share` of the bytes of all tables each, and on a third with plenty."""
    memory = (int(share * task.total_bytes), int(share * task.total_bytes), 2**40)
    topology = dataclasses.replace(task.topology, num_devices=3, memory_bytes=memory, fast_domain_size=3)
    return dataclasses.replace(task, topology=topology)


def random_costs(batch, seed=0):
    """Costs that make the first devices popular."""
    shape = (len(batch), batch.table_mask.shape[1], batch.device_mask.shape[1])
    costs = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return costs + 0.5 * torch.arange(shape[2])


@pytest.mark.parametrize("share", [10.0, 0.3])
def test_relaxed_assignments_fit_into_memory_and_place_every_table_once(tasks, share):
    batch = TaskBatch.of([with_memory(task, share) for task in tasks[:6]])
    soft = assign(random_costs(batch), batch, 0.2).soft
    torch.testing.assert_close(soft.sum(dim=2), torch.ones(soft.shape[:2]))
    used = (soft * batch.table_bytes[..., None]).sum(dim=1) / batch.memory_bytes
    assert bool((used <= 1.001).all())
    assert bool((used > 0.99).any()) == (share < 1)


@pytest.mark.parametrize("share", [10.0, 0.3])
def test_gradients_are_those_of_the_solution(tasks, share):
    """Against differences of the solution for slightly other costs, prices of memory included."""
    batch = TaskBatch.of([with_memory(tasks[2], share)])
    costs = random_costs(batch).requires_grad_()
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(costs.shape, generator=generator)
    (gradient,) = torch.autograd.grad((assign(costs, batch, 0.5).soft * weights).sum(), [costs])
    step = 2e-3
    for _ in range(5):
        direction = torch.randn(costs.shape, generator=generator)
        after, before = (
            (assign((costs + sign * step * direction).detach(), batch, 0.5).soft * weights).sum() for sign in (1, -1)
        )
        expected = float(after - before) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=0.03, abs=3e-3)


def test_gradient_steps_lower_the_estimate(tasks, fitted):
    """In the released code of `zero` and `hybrid`, the surrogate costs never change."""
    network = SurCo.load(fitted)._own.network
    batch = TaskBatch.of(tasks[:8])
    costs = torch.rand(random_costs(batch).shape, generator=torch.Generator().manual_seed(0))
    better = improve(network, batch, costs, SurCoSettings(zero_steps=10)).costs

    @torch.no_grad()
    def estimate(of):
        return network.log_ms(
            batch, network.latents(batch), straight_through(assign(of, batch, SurCoSettings().temperature))
        )

    assert bool((estimate(better) <= estimate(costs)).all())
    assert bool((estimate(better) < estimate(costs)).any())


def test_loads_are_those_of_the_greedy_rule_by_predicted_costs(tasks, network):
    with torch.no_grad():
        for head in network.cost.heads:
            head[-1].bias.fill_(1.0)  # no prediction is below the least one, so that no two tables cost the same
    batch = TaskBatch.of(tasks[:6])
    loads = load_features(network.cost, batch)
    for b, task in enumerate(tasks[:6]):
        costs = loads.tables[b, : task.num_tables].sum(dim=-1)
        held = torch.zeros(task.num_devices)
        for table in costs.argsort(descending=True).tolist():
            ahead = loads.pairs[b, table, : task.num_devices, 0]
            torch.testing.assert_close(ahead, held - held.min(), rtol=1e-4, atol=1e-3)
            (device,) = loads.pairs[b, table, :, 2].nonzero()[:, 0].tolist()
            assert float(ahead[device]) == 0.0
            held[device] += costs[table]
        assert not loads.pairs[b, task.num_tables :].any()


def test_a_step_of_training_changes_the_surrogate_network(tasks, network):
    learner = SurCoLearner(Setup(network, tasks[:4], TrainingOracle(COST), 10, SurCoSettings(**QUICK["surco"])))
    before = {name: parameter.detach().clone() for name, parameter in network.surrogate.named_parameters()}
    figures = learner.step(0, np.random.default_rng(0))
    after = dict(network.surrogate.named_parameters())
    # A bias that adds the same to the costs of all devices has no gradient but what rounding leaves.
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("weight"))
    assert {"surrogate_loss", "loss_overall"} <= set(figures)


@pytest.mark.parametrize("variant", ["prior", "zero", "hybrid"])
def test_plans_fit_into_tight_memory(tasks, fitted, variant):
    task = with_memory(tasks[4], 0.3)
    solver = SurCo(weights=fitted, variant=variant, zero_steps=5, starts=2)
    plan = solver.solve(task, COST)
    plan.validate(task)
    assert solver.solve(task, COST) == plan


SHAPES = [(3000, 16, 12.0), (9000, 8, 3.0), (500, 32, 20.0), (20_000, 4, 1.0), (4000, 16, 6.0), (800, 64, 2.0)]


@pytest.mark.parametrize("memory", [[2**30] * 3, [600_000, 400_000, 400_000], [500_000, 450_000, 400_000]])
def test_the_cheapest_assignment_is_the_best_of_all(memory):
    task = task_of(SHAPES, memory)
    costs = np.random.default_rng(0).normal(size=(6, 3)) + np.array([0.0, 0.5, 1.0])
    sizes = [task.table_bytes(table) for table in task.tables]

    def added(devices):
        used = np.bincount(devices, weights=sizes, minlength=3)
        return costs[range(6), devices].sum() if (used <= memory).all() else np.inf

    best = min(itertools.product(range(3), repeat=6), key=lambda devices: added(list(devices)))
    assert cheapest_assignment(task, costs).tolist() == list(best)


def test_assignments_that_cannot_be_are_refused():
    with pytest.raises(NoFeasiblePlanError, match="no assignment of whole tables"):
        cheapest_assignment(task_of(SHAPES, [300_000, 300_000]), np.ones((6, 2)))
