"""PolicySolver: a policy trained with any library, as a solver."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from baselines.learning.weights import SolverCard, digest_of, load_card, load_network, save_network
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.envs import ENV_IDS
from shardgym.envs.vector_env import IDLE
from shardgym.errors import InputError, NoFeasiblePlanError, UnknownNameError, check_int, import_extra, short_repr
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.machine import utc_now, versions
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.registry import find_class
from shardgym.tasks.task import ShardingTask
from shardgym.training.fitting import one_thread

#: Observations of N environments, by entry.
Observations = Mapping[str, npt.NDArray[Any]]
#: Scores of all actions, shape (N, actions): logits, or values of actions.
Scores = Callable[[Observations], Floats]
#: Arguments of environments that a solver sets itself.
_OWN_ARGUMENTS = (
    "suite", "tasks", "pool", "pool_tasks", "cost", "cost_settings", "reward", "plans", "render_mode",
)  # fmt: skip


def scores_of(policy: Any) -> Scores:
    """Return a function that scores the actions of N observations.

    Args:
        policy: one of
            an algorithm or a policy of stable-baselines3 or sb3-contrib, with a categorical policy or Q-values;
            a TorchRL actor, a tensordict module with a distribution or with the entry "logits";
            an RLlib module with `forward_inference`;
            a function or torch module that maps observations to scores.

    Raises:
        InputError: the policy is none of these. The returned function raises it for observations that do not suit.
    """
    inner = getattr(policy, "policy", policy)  # of an algorithm of stable-baselines3
    if callable(getattr(inner, "obs_to_tensor", None)):
        score: Callable[[Observations], Any] = functools.partial(_stable_baselines, inner)
    elif hasattr(policy, "in_keys") and hasattr(policy, "out_keys"):
        score = functools.partial(_torchrl, policy)
    elif callable(getattr(policy, "forward_inference", None)):
        score = functools.partial(_rllib, policy)
    elif isinstance(policy, nn.Module):
        score = functools.partial(_module, policy)
    elif callable(policy):
        score = policy
    else:
        raise InputError(
            f"policy: expected one of stable-baselines3, TorchRL or RLlib, or a function of observations that returns "
            f"scores of actions, got {short_repr(policy)}"
        )

    def scores(observations: Observations) -> Floats:
        returned = score(observations)
        if isinstance(returned, torch.Tensor):
            returned = returned.detach().cpu().numpy()
        return np.asarray(returned, dtype=np.float64)

    return scores


def network_of(policy: Any) -> nn.Module:
    """Return the module with a policy's weights; for a function, a module without weights."""
    for module in (policy, getattr(policy, "policy", None)):
        if isinstance(module, nn.Module):
            return module
    return nn.Module()


def _tensors(observations: Observations) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(values) for name, values in observations.items()}


def _stable_baselines(policy: Any, observations: Observations) -> Any:
    policy.set_training_mode(False)
    _check_trained_on(policy.observation_space, observations)
    seen, _ = policy.obs_to_tensor(dict(observations))
    if hasattr(policy, "q_net"):
        return policy.q_net(seen)
    return policy.get_distribution(seen).distribution.logits


def _check_trained_on(space: spaces.Space[Any], observations: Observations) -> None:
    """Raise `InputError` unless a policy was trained on such observations."""
    trained = {name: part.shape for name, part in space.items()} if isinstance(space, spaces.Dict) else {}
    given = {name: values.shape[1:] for name, values in observations.items()}
    if trained != given:
        raise InputError(
            f"policy: was trained on {_shapes(trained) or type(space).__name__}, the solver gives it {_shapes(given)}: "
            "give env_id, flat, observation, max_devices, max_tables and max_splits as in training"
        )


def _shapes(entries: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in sorted(entries.items()))


def _torchrl(policy: Any, observations: Observations) -> Any:
    tensordict = import_extra("tensordict", "an actor of TorchRL", "torchrec")
    seen = tensordict.TensorDict(_tensors(observations), batch_size=[len(next(iter(observations.values())))])
    if callable(getattr(policy, "get_dist", None)):
        return policy.get_dist(seen).logits
    return policy(seen)["logits"]


def _rllib(policy: Any, observations: Observations) -> Any:
    return policy.forward_inference({"obs": _tensors(observations)})["action_dist_inputs"]


def _module(policy: nn.Module, observations: Observations) -> Any:
    return policy.eval()(_tensors(observations))


class PolicySolver:
    """Plays episodes of an environment with a policy, all at once, and returns the best plan.

    The first episode takes the valid action with the highest score at each step; the others sample actions with scores
    as logits. Among costs within a tie, the first plan wins. A policy decides in its own precision, so if two scores
    differ only by rounding, another processor may choose the other action.

    Args:
        policy: see `scores_of`.
        env_id: environment, such as "ShardGym/ColumnWise-v0".
        samples: number of episodes.
        flat: names of numbers and mask, such as ("obs", "mask"), if the policy was trained on flat observations.
        folder: folder that `save` wrote, instead of a policy and an environment; `samples` overrides its value.
        **env_settings: environment arguments of the training that change observations: `observation`, `order`,
            `max_splits`, `max_devices`, `max_tables`, ....

    Attributes:
        weights_digest: SHA-256 of the policy's weights.
        training_time_s: training time in seconds of a loaded policy; None if unknown.

    Raises:
        InputError: no policy, an unknown kind of policy, an argument that belongs to the solver, or a damaged folder.
        UnknownNameError: no such environment.
    """

    def __init__(
        self,
        policy: Any = None,
        env_id: str | None = None,
        samples: int | None = None,
        *,
        flat: tuple[str, str] | None = None,
        folder: str | Path | None = None,
        **env_settings: Any,
    ) -> None:
        card = None
        if folder is not None:
            if policy is not None or env_id is not None or flat is not None or env_settings:
                raise InputError("folder sets policy, environment and its arguments: give only samples besides")
            card = load_card(folder, None)
            policy = _made(card.solver)
            load_network(folder, card, network_of(policy))
            env_settings = dict(card.settings)
            env_id, flat, kept = (env_settings.pop(name) for name in ("env_id", "flat", "samples"))
            samples = kept if samples is None else samples
        elif policy is None and env_id is None:
            raise InputError("give a policy and its env_id, or folder= with what PolicySolver.save wrote")
        if env_id not in ENV_IDS:
            raise UnknownNameError("environment", env_id, ENV_IDS)
        own = next((name for name in _OWN_ARGUMENTS if name in env_settings), None)
        if own is not None:
            raise InputError(f"{own}: the solver sets it, expected arguments that observations depend on")
        self.folder = None if folder is None else str(folder)
        self.policy = policy
        self._scores = scores_of(policy)
        self.env_id = env_id
        self.samples = check_int("samples", 1 if samples is None else samples, 1)
        self.flat = None if flat is None else (str(flat[0]), str(flat[1]))
        self.env_settings = env_settings
        self.weights_digest = digest_of(network_of(policy))
        self.training_time_s = None if card is None or card.minutes is None else 60.0 * card.minutes

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the episodes' plan that costs least by the oracle, see `Solver`."""
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        envs: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
            self.env_id, self.samples, tasks=[task], cost=cost, autoreset_mode="Disabled", flat=self.flat,
            **self.env_settings,
        )  # fmt: skip
        try:
            with one_thread(), torch.no_grad():
                best, reason = self._play(envs, np.random.default_rng(int(seed)))
        finally:
            envs.close()
        if best is None:
            raise NoFeasiblePlanError(f"none of {self.samples} episodes of the policy ended with a plan: {reason}")
        return best

    def save(
        self, folder: str | Path, factory: str, *, training: str = "", training_time_s: float | None = None
    ) -> None:
        """Write weights and card into a folder, which `folder=` of this class reads.

        Args:
            folder: folder to write, created if needed.
            factory: module:function that builds the policy's architecture without arguments.
            training: a sentence on how the policy was trained.
            training_time_s: training time in seconds.

        Raises:
            InputError: `factory` builds a different policy, or the folder cannot be written.
        """
        network = network_of(self.policy)
        made = network_of(_made(factory))
        shapes = [{name: tuple(tensor.shape) for name, tensor in n.state_dict().items()} for n in (network, made)]
        if shapes[0] != shapes[1]:
            raise InputError(f"'{factory}' makes a policy of another architecture: expected that of this policy")
        own = {"env_id": self.env_id, "samples": self.samples, "flat": self.flat}
        card = SolverCard(
            solver=factory,
            settings=own | self.env_settings,
            weights_sha256=self.weights_digest,
            created=utc_now(),
            versions=versions(),
            minutes=None if training_time_s is None else training_time_s / 60,
            note=training,
        )
        save_network(Path(folder), network, card)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load the solver that `save` wrote; raises `InputError` if files are missing or damaged."""
        return cls(folder=folder)

    def _play(self, envs: VectorEnv[Any, Any, Any], rng: np.random.Generator) -> tuple[ShardingPlan | None, str]:
        """Return the best plan of the episodes, or None and why the last episode ended."""
        observations, _ = envs.reset(seed=0)
        waiting = np.zeros(self.samples, dtype=np.bool_)
        plans: dict[int, tuple[float, ShardingPlan]] = {}
        reason = ""
        while not waiting.all():
            actions = np.where(waiting, IDLE, self._actions(observations, envs, rng))
            observations, _, terminated, _, infos = envs.step(actions)
            for row in np.flatnonzero(terminated).tolist():
                if infos["outcome"][row] == "complete":
                    plans[row] = float(quantized(infos["cost_ms"][row])), infos["plan"][row]
                else:
                    reason = str(infos["reason"][row]) if "reason" in infos else str(infos["outcome"][row])
            waiting |= terminated
        if not plans:
            return None, reason
        first = min(plans, key=lambda row: (plans[row][0], row))
        return plans[first][1], reason

    def _actions(self, observations: Observations, envs: VectorEnv[Any, Any, Any], rng: np.random.Generator) -> Ints:
        """Return an action for each environment: the best for the first one, sampled ones for the others."""
        valid = envs.action_masks()  # type: ignore[attr-defined]
        try:
            scores: Floats = quantized(self._scores(observations))
        except KeyError as error:
            raise InputError(
                f"policy: it reads {error}, which observations of {self.env_id} lack: give the env_id and settings of "
                "its training, such as observation='timed'"
            ) from error
        if scores.shape != valid.shape:
            raise InputError(f"policy: returned scores of shape {scores.shape}, expected {valid.shape}")
        if np.isnan(scores[valid.any(axis=1)]).any():  # episodes that are over have no valid action to score
            raise InputError("policy: returned NaN as the score of an action, expected numbers")
        # The highest of scores with Gumbel noise is a draw from their softmax.
        noise = rng.gumbel(size=scores.shape)
        noise[0] = 0.0
        chosen: Ints = np.where(valid, scores + noise, -np.inf).argmax(axis=1)
        return chosen


def _made(factory: str) -> Any:
    """Call the function that makes a policy; raises `InputError` when there is none."""
    make = find_class("policy", "", factory)
    if not callable(make):
        raise InputError(f"'{factory:.80}' is {short_repr(make)}: expected a function without arguments")
    return make()
