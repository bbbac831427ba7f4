"""PolicySolver: policies of all libraries as solvers, best of many episodes, files, runs and boards."""

import json
import sys

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import shardgym
from baselines.learning.policy_solver import PolicySolver, scores_of
from baselines.learning.weights import SolverCard
from shardgym import InputError, NoFeasiblePlanError, ShardingTask, Topology, load_suite, make_cost
from shardgym.evaluation.conformance import check_solver

TABLE, COLUMN, ANY = (f"ShardGym/{name}Wise-v0" for name in ("Table", "Column", "Any"))
TIMED = {"observation": "timed", "order": "lookup"}
COST = make_cost("roofline")


def lookahead(observations):
    """Scores of devices by what each takes with the next table; further actions are never chosen."""
    times = observations["times"].reshape(len(observations["times"]), -1, 2)
    actions = observations["action_mask"].shape[1]
    scores = np.full((len(times), actions), -1e6)
    scores[:, : times.shape[1]] = -3 * times[:, :, 1]
    return scores


class Layers(nn.Module):
    """A network over flat observations of four devices."""

    def __init__(self, inputs=67):
        super().__init__()
        self.layers = nn.Linear(inputs, 4)

    def forward(self, observations):
        return self.layers(observations["obs"])

    def forward_inference(self, batch):
        return {"action_dist_inputs": self(batch["obs"])}


class TwoParts(nn.Module):
    """An encoder and what it calls its policy."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(67, 8)
        self.policy = nn.Linear(8, 4)

    def forward(self, observations):
        return self.policy(self.encoder(observations["obs"]))


class OfRllib:
    def __init__(self, network):
        self.forward_inference = network.forward_inference


def cost_of(solver, task):
    (cost,) = COST.evaluate(task, [solver.solve(task, COST)])
    return cost.total_ms


@pytest.mark.parametrize("env_id", [TABLE, COLUMN, ANY])
def test_one_episode_takes_the_best_valid_action(env_id):
    for task in load_suite("quick-v2")[:4]:
        env = gymnasium.make(env_id, tasks=[task], cost=COST, **TIMED)
        observation, info = env.reset()
        while "outcome" not in info:
            scores = lookahead({name: values[None] for name, values in observation.items()})[0]
            action = np.where(observation["action_mask"], scores, -np.inf).argmax()
            observation, _, _, _, info = env.step(action)
        assert PolicySolver(lookahead, env_id, **TIMED).solve(task, COST) == info["plan"]


def test_more_episodes_are_never_worse_and_follow_from_the_seed():
    task = load_suite("quick-v2")[3]
    costs = [cost_of(PolicySolver(lookahead, TABLE, samples=n, **TIMED), task) for n in (1, 4, 16, 64)]
    assert costs[-1] < costs[0]
    assert max(costs) == costs[0]
    solver = PolicySolver(lookahead, TABLE, samples=16, **TIMED)
    assert solver.solve(task, COST, seed=5) == solver.solve(task, COST, seed=5)
    assert len({solver.solve(task, COST, seed=seed).to_json() for seed in range(8)}) > 1


def test_a_dead_end_of_one_episode_is_none_of_the_solver():
    rows = {"a": 50, "b": 40, "c": 60, "d": 50}
    tables = tuple(shardgym.EmbeddingTable(name, of_table, 4) for name, of_table in rows.items())
    task = ShardingTask(tables, Topology(2, memory_bytes=100 * 16), 16)  # a with d, and b with c

    def first_device(observations):
        return np.ones((len(observations["progress"]), 1)) * [2.0, 0.0]

    with pytest.raises(NoFeasiblePlanError, match="none of 1 episodes of the policy ended with a plan: "):
        PolicySolver(first_device, TABLE, order="task").solve(task, COST)
    plan = PolicySolver(first_device, TABLE, samples=256, order="task").solve(task, COST)
    plan.validate(task)


def test_episodes_that_are_over_need_no_scores():
    """Of an episode that is over no action is valid, and a masked softmax of nothing is NaN."""
    task = load_suite("quick-v2")[0]

    def masked(seen):
        return np.where(seen["action_mask"].any(axis=1, keepdims=True), 0.0, np.nan) * seen["action_mask"]

    PolicySolver(masked, COLUMN, samples=8, **TIMED).solve(task, COST).validate(task)


def test_a_policy_of_stable_baselines():
    contrib = pytest.importorskip("sb3_contrib")
    from baselines.ppo.policies import SetPolicy
    from shardgym.envs.sb3 import NativeVecEnv

    envs = NativeVecEnv(gymnasium.make_vec(TABLE, 2, suite="quick-v2", autoreset_mode="SameStep", **TIMED))
    model = contrib.MaskablePPO(SetPolicy, envs, n_steps=16, batch_size=16, seed=0, device="cpu")
    task = load_suite("tiny-v1")[0]
    solver = PolicySolver(model, TABLE, samples=4, max_devices=4, **TIMED)
    plan = solver.solve(task, COST)
    plan.validate(task)
    env = gymnasium.make(TABLE, tasks=[task], cost=COST, max_devices=4, **TIMED)
    observation, info = env.reset()
    while "outcome" not in info:
        masks = env.get_wrapper_attr("action_masks")()
        action, _ = model.predict(observation, action_masks=masks, deterministic=True)
        observation, _, _, _, info = env.step(action)
    assert PolicySolver(model, TABLE, max_devices=4, **TIMED).solve(task, COST) == info["plan"]
    for settings in (TIMED, {"max_devices": 4}, {"flat": ("obs", "mask")}):
        with pytest.raises(InputError, match=r"was trained on .*times \(8,\).*, the solver gives it .*: give env_id"):
            PolicySolver(model, TABLE, **settings).solve(task, COST)


@pytest.mark.parametrize("library", ["torchrl", "tensordict", "rllib"])
def test_an_actor_of_another_library(library):
    network = Layers()
    if library == "rllib":
        actor = OfRllib(network)
    else:
        pytest.importorskip(library)
        from tensordict.nn import TensorDictModule

        actor = TensorDictModule(network.layers, in_keys=["obs"], out_keys=["logits"])
    if library == "torchrl":
        from torchrl.modules import MaskedCategorical, ProbabilisticActor

        class Valid(nn.Module):
            def forward(self, obs, mask):
                return network.layers(obs), (mask > 0) | ~(mask > 0).any(dim=-1, keepdim=True)

        actor = ProbabilisticActor(
            TensorDictModule(Valid(), in_keys=["obs", "mask"], out_keys=["logits", "valid"]),
            in_keys={"logits": "logits", "mask": "valid"},
            distribution_class=MaskedCategorical,
        )
    task = load_suite("quick-v2")[7]
    plans = [
        PolicySolver(policy, TABLE, flat=("obs", "mask"), max_devices=4, **TIMED).solve(task, COST)
        for policy in (network, actor)
    ]
    assert plans[0] == plans[1]


def test_a_saved_policy_is_a_solver_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "trained", sys.modules[__name__])
    solver = PolicySolver(Layers(), TABLE, samples=4, flat=("obs", "mask"), max_devices=4, **TIMED)
    solver.save("policy", "trained:Layers", training="not at all", training_time_s=12.5)
    card = SolverCard.load("policy/card.json")
    own = {"env_id": TABLE, "samples": 4, "flat": ["obs", "mask"]}
    assert (card.note, card.settings) == ("not at all", {**own, "max_devices": 4, **TIMED})
    loaded = PolicySolver.load("policy")
    task = load_suite("quick-v2")[0]
    assert loaded.solve(task, COST) == solver.solve(task, COST)
    assert loaded.weights_digest == solver.weights_digest == card.weights_sha256
    assert loaded.training_time_s == 12.5
    report = check_solver(
        "baselines.learning.policy_solver:PolicySolver", settings={"folder": str(tmp_path / "policy")}
    )
    assert report.ok, report.table()

    whole = PolicySolver(TwoParts(), TABLE, flat=("obs", "mask"), max_devices=4, **TIMED)
    whole.save("whole", "trained:TwoParts")
    assert PolicySolver.load("whole").weights_digest == whole.weights_digest
    assert PolicySolver.load("whole").solve(task, COST) == whole.solve(task, COST)

    damaged = json.loads((tmp_path / "policy" / "card.json").read_text())
    (tmp_path / "policy" / "card.json").write_text(json.dumps(damaged | {"weights_sha256": "0" * 64}))
    with pytest.raises(InputError, match="damaged, or not the weights that card.json is about".replace(".", r"\.")):
        PolicySolver.load("policy")
    with pytest.raises(InputError, match="no weights in nowhere"):
        PolicySolver(folder="nowhere")
    with pytest.raises(InputError, match="folder sets policy, environment and its arguments"):
        PolicySolver(folder="policy", env_id=TABLE)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((lookahead, "ShardGym/Tables-v0"), {}, "unknown environment 'ShardGym/Tables-v0': did you mean"),
        ((), {}, "give a policy and its env_id, or folder= with what PolicySolver.save wrote"),
        ((None, TABLE), {}, "policy: expected one of stable-baselines3, TorchRL or RLlib, or a function"),
        ((lookahead, TABLE), {"pool": "synthetic-2021"}, "pool: the solver sets it, expected arg"),
    ],
)
def test_wrong_arguments_are_named(arguments, settings, message):
    with pytest.raises(InputError, match=message):
        PolicySolver(*arguments, **settings)


def test_scores_of_another_shape_and_other_policies_are_refused(tmp_path):
    task = load_suite("quick-v2")[0]
    with pytest.raises(InputError, match=r"returned scores of shape \(1, 1\), expected \(1, 4\)"):
        PolicySolver(lambda seen: np.zeros((1, 1)), TABLE).solve(task, COST)
    with pytest.raises(InputError, match="policy: returned NaN as the score of an action"):
        PolicySolver(lambda seen: np.full((1, 4), np.nan), TABLE).solve(task, COST)
    with pytest.raises(InputError, match="policy: it reads 'times', which observations of ShardGym/TableWise-v0 lack"):
        PolicySolver(lambda seen: seen["times"], TABLE).solve(task, COST)
    with pytest.raises(InputError, match="makes a policy of another architecture: expected th"):
        PolicySolver(Layers(inputs=9), TABLE).save(tmp_path, f"{__name__}:Layers")
    assert torch.equal(torch.tensor(scores_of(lambda seen: [[1, 2]])({})), torch.tensor([[1.0, 2.0]]).double())
