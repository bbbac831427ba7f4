"""`ppo` and its kin: devices are a set, training can be killed, and what was learned solves other tasks."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from sums import WholePlans
from torch import nn

from baselines.ppo.episode import Episodes
from baselines.ppo.set_network import ArrayScores, SetNetwork, observations_of
from baselines.ppo.solver import ENV_ARGUMENTS, Ppo, PpoColumns
from neuroshard import NeuroShard
from neuroshard.plus.solver import NeuroShardPlus
from shardgym import EmbeddingTable, ShardingTask, Topology, make_cost
from shardgym.costs.ties import quantized
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.tasks import training_tasks
from shardgym.errors import InputError, MissingDependencyError, NoFeasiblePlanError

COST = make_cost("roofline")


@pytest.fixture(scope="module")
def two_devices():
    return [task for task in training_tasks("tiny-v1", 60) if task.num_devices == 2]


@pytest.fixture
def network():
    torch.manual_seed(0)
    return SetNetwork()


def test_by_competing_alone_a_policy_gets_better(monkeypatch):
    """Of four episodes; one step of imitation hardly teaches anything."""
    monkeypatch.setattr(PpoColumns, "episodes", 4)
    tasks = training_tasks("dlrm4-v2", 4)
    settings = {"imitation_steps": 1, "imitation_updates": 1, "imitated": 1, "tasks": 4, "learning_rate": 3e-3}
    solver = PpoColumns(**settings, decisions=512).fit(tasks, COST, steps=11, validation=tasks, evaluate_every=5)
    first, *later = [entry["validation_ms"] for entry in solver.card.curve]
    assert min(later) < 0.97 * first
    assert solver._own.network.halves
    assert solver.card.oracle_queries > 10 * 4 * 32 * 6


@pytest.mark.parametrize(
    ("env", "suites", "count", "least", "solver", "kinds"),
    [
        ("ColumnWise", ["dlrm4-v2", "tight8-v2"], 8, 5, NeuroShard(), {0, 1}),
        ("AnyWise", "dlrm8-gpu-v1", 4, 1, NeuroShardPlus(8), {0, 1, 3}),
        ("AnyWise", "nodes16-v1", 2, 1, NeuroShardPlus(8), {0, 1, 2}),
    ],
)
def test_the_decisions_that_lead_to_a_plan_are_found(env, suites, count, least, solver, kinds):
    """Played again, they end with the same contents of all devices, and each plan needs so many halvings.

    Columns that no halving makes become several shards of one device; rows and replicas are where they were.
    """
    seen, followed, most_cut = set(), 0, (0, None, None)
    settings = {"splits": 64, "every_kind": True} if env == "AnyWise" else {"splits": 16}
    for task in training_tasks(suites, count):
        plan = solver.solve(task, COST)
        decisions = Episodes(task, COST, "lookup", **settings).follow(plan)
        if not decisions:
            continue
        followed += 1
        played = gymnasium.make(f"ShardGym/{env}-v0", tasks=[task], cost=COST, **ENV_ARGUMENTS[env])
        observation, info = played.reset(seed=0)
        for step in decisions:
            action = int(step.chosen[0])
            assert step.valid[0, action]
            for name, values in observations_of(step.table, step.devices, step.rest).items():
                np.testing.assert_allclose(values[0], observation[name], atol=1e-6)
            observation, _, _, _, info = played.step(action)
            seen.add(max(0, action - task.num_devices + 1))
        for device in range(task.num_devices):
            assert held_cells(info["plan"], task, device) == held_cells(plan, task, device)
        most_cut = max(most_cut, (len(plan.shards) - task.num_tables, task, plan), key=lambda of_task: of_task[0])
    assert kinds <= seen
    assert followed >= least
    _, task, plan = most_cut
    assert Episodes(task, COST, "lookup", **settings | {"splits": 1}).follow(plan) == []


def held_cells(plan, task, device):
    cells = dict.fromkeys((table.name for table in task.tables), 0)
    for shard in plan.on(device):
        cells[shard.table] += shard.num_rows * shard.num_columns
    return cells


def test_the_policy_acts_by_the_scores_of_the_network(network):
    sb3_contrib = pytest.importorskip("sb3_contrib", reason="needs the extra 'rl'")
    from baselines.ppo.policies import SetPolicy

    env = gymnasium.make("ShardGym/TableWise-v0", suite="tiny-v1", cost=COST, observation="timed")
    model = sb3_contrib.MaskablePPO(SetPolicy, env, policy_kwargs={"network": network}, device="cpu")
    observation, _ = env.reset(seed=3)
    seen = {name: torch.from_numpy(values)[None] for name, values in observation.items()}
    with torch.no_grad():
        scores, value = network(seen)
        distribution = model.policy.get_distribution(model.policy.obs_to_tensor(observation)[0])
        torch.testing.assert_close(distribution.distribution.probs, scores.softmax(dim=1))
        torch.testing.assert_close(model.policy.predict_values(model.policy.obs_to_tensor(observation)[0]), value)
    trained = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in network.parameters()}


def test_a_cost_that_scores_whole_plans_only_is_refused(network, two_devices):
    with pytest.raises(InputError, match=r"^a policy over devices needs an additive cost"):
        Ppo().place(network, two_devices[0], WholePlans(), 0)
    with pytest.raises(InputError, match=r"^ppo needs an additive cost, and 'roofline' is not additive"):
        Ppo().check_ready(WholePlans())


@pytest.mark.parametrize("env", ["TableWise", "ColumnWise"])
@pytest.mark.parametrize("cost_name", ["roofline", "simulator"])
def test_plans_are_those_of_an_episode_of_the_environment(env, cost_name, network):
    """Devices that hold the same may change places: which of equal scores is larger is a matter of rounding."""
    network.halves.fill_(env == "ColumnWise")
    nn.init.constant_(network.halving_score[-1].bias, 0.0)
    cost = make_cost(cost_name)
    halved = 0
    with torch.no_grad():
        for task in training_tasks(["tiny-v1", "dlrm4-v1"], 10):
            played = played_in_environment(network, task, cost, env)
            if played is None and env == "ColumnWise":
                Ppo().place(network, task, cost, 0).validate(task)
                continue
            if played is None:
                with pytest.raises(NoFeasiblePlanError, match="fits on no device"):
                    Ppo().place(network, task, cost, 0)
                continue
            plan = Ppo().place(network, task, cost, 0)
            assert contents(plan, task) == contents(played, task)
            halved += len(plan.shards) - task.num_tables
    assert (halved > 0) == (env == "ColumnWise")


@pytest.mark.parametrize("favoured", [HALVE, CUT_ROWS, REPLICATE])
def test_plans_of_any_kind_are_those_of_an_episode_of_the_environment(favoured):
    """Shards of one table on one device are one in the plan; devices that hold the same may change places."""
    torch.manual_seed(1)
    network = SetNetwork(every_kind=True).double()
    network.halving_score[-1].bias.data = torch.tensor([0.2 * (action == favoured) for action in range(3)]).double()
    taken = 0
    with torch.no_grad():
        for task in training_tasks(["tiny-v1", "rows8-v1"], 4):
            played = played_in_environment(network, task, COST, "AnyWise")
            if played is None:
                continue
            plan = Episodes(task, COST, "lookup", splits=64, every_kind=True).plan(network)
            plan.validate(task)
            cells = [sorted(str(held_cells(of, task, d)) for d in range(task.num_devices)) for of in (plan, played)]
            assert cells[0] == cells[1]
            for shard in plan.shards:
                table = task.table(shard.table)
                halved, cut = shard.num_columns < table.embedding_dim, shard.num_rows < table.num_embeddings
                taken += (halved, cut, len(shard.devices) > 1)[favoured]
    assert taken > 2


def test_several_holders_are_worth_what_the_worst_of_them_is():
    """In two domains of two devices, by tensors and by arrays."""
    torch.manual_seed(0)
    network = SetNetwork(every_kind=True)
    devices = np.random.default_rng(0).uniform(0, 1, (1, 4, 9))
    devices[:, :, 0] = 1
    table, rest = np.full((1, 25), 0.1), np.full((1, 10), 0.5)
    seen = network.scores(observations_of(table, devices, rest)).detach()
    scores = ArrayScores(network.double(), table, 4, halves=True)
    steps = scores.of_steps(np.array([0]), rest)
    apart, pairs = (scores.scores(steps, devices, np.array([number])) for number in (1, 2))
    np.testing.assert_allclose(pairs, seen, atol=1e-5)
    np.testing.assert_allclose(pairs[0, [0, 2]], apart[0, :4].reshape(2, 2).min(axis=1))


def test_the_cheapest_of_many_episodes_is_taken(network):
    """Here the first one alone is 5 % and more behind on average, as an untrained policy is no better than chance."""
    cost = make_cost("simulator")
    ratios = []
    for task in training_tasks("dlrm4-v2", 6):
        with torch.no_grad():
            one, many, same, others = (
                Episodes(task, cost, "lookup", 16, splits=10).plan(network, episodes=episodes, seed=seed)
                for episodes, seed in ((1, 0), (16, 0), (16, 0), (16, 1))
            )
        many.validate(task)
        assert many.shards == same.shards
        ms = [answer.total_ms for answer in cost.evaluate(task, [one, many, others])]
        assert max(ms[1:]) <= ms[0] * (1 + 1e-9)
        ratios.append(ms[1] / ms[0])
    assert np.mean(ratios) < 0.95


def played_in_environment(network, task, cost, env):
    """Return the plan of an episode in which the valid action with the highest score always wins, None if stuck."""
    env = gymnasium.make(f"ShardGym/{env}-v0", tasks=[task], cost=cost, **ENV_ARGUMENTS[env])
    observation, info = env.reset(seed=0)
    dtype = network.value[0].weight.dtype
    while "outcome" not in info:
        seen = {name: torch.from_numpy(values)[None].to(dtype) for name, values in observation.items()}
        scores = quantized(network.scores(seen)[0].numpy())
        valid = observation["action_mask"] > 0
        observation, _, _, _, info = env.step(int(np.where(valid, scores, -np.inf).argmax()))
    return info.get("plan")


def contents(plan, task):
    """Return tables and widths on every device, in no order."""
    return sorted(sorted((s.table, s.num_columns) for s in plan.on(d)) for d in range(task.num_devices))


def test_what_fits_nowhere_is_halved_beyond_the_limit(network):
    """Four devices have room for one and a half of six tables each, so two tables must be cut."""
    tables = tuple(EmbeddingTable(f"t{i}", 100, 8, 1.0 + i) for i in range(6))
    task = ShardingTask(tables, Topology(num_devices=4, memory_bytes=4800), batch_size=64)
    nn.init.constant_(network.halving_score[-1].bias, -1e3)
    with torch.no_grad():
        plan = Episodes(task, COST, "lookup", splits=1).plan(network)
        plan.validate(task)
        assert len(plan.shards) == 8
        with pytest.raises(NoFeasiblePlanError, match="fits on no device"):
            Episodes(task, COST, "lookup").plan(network)


def test_settings_that_contradict_each_other_are_refused(two_devices):
    pytest.importorskip("sb3_contrib", reason="needs the extra 'rl'")
    with pytest.raises(InputError, match=r"^minibatches: expected a divisor of num_envs, 64, got 3$"):
        Ppo(minibatches=3).fit(two_devices, COST, steps=1)
    with pytest.raises(InputError, match=r"^steps: all 40 would imitate: give more steps, or fewer"):
        PpoColumns().fit(two_devices, COST, steps=40)


def test_without_the_extra_fitting_says_what_to_install(two_devices, monkeypatch):
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(MissingDependencyError, match=r"'sb3_contrib', which is .*: pip install 'shardgym\[rl"):
        Ppo().fit(two_devices, COST, steps=1)
