"""Scores of actions by policies of reinforcement learning libraries, which are recognised without being imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import nn

from shardgym.arrays import Floats
from shardgym.errors import InputError, import_extra
from shardgym.records import short_repr

#: Observations of N environments, by entry.
Observations = Mapping[str, npt.NDArray[Any]]
#: Scores of all actions, shape (N, actions): logits, or values of actions.
Scores = Callable[[Observations], Floats]


def scores_of(policy: Any) -> Scores:
    """Return a function that scores the actions of N observations.

    Args:
        policy: one of
            an algorithm or a policy of stable-baselines3 or sb3-contrib, with a categorical policy or Q-values;
            an actor of TorchRL, a module of tensordicts with a distribution or with the entry "logits";
            a module of RLlib with `forward_inference`;
            a function, or module of torch, of the observations, which returns scores.

    Raises:
        InputError: it is none of these; and, when called, if it takes no such observations.
    """
    inner = getattr(policy, "policy", policy)  # of an algorithm of stable-baselines3
    if callable(getattr(inner, "obs_to_tensor", None)):
        score: Callable[[Observations], Any] = _stable_baselines(inner)
    elif hasattr(policy, "in_keys") and hasattr(policy, "out_keys"):
        score = _torchrl(policy)
    elif callable(getattr(policy, "forward_inference", None)):
        score = _rllib(policy)
    elif isinstance(policy, nn.Module):
        score = _module(policy)
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
    """Return the module that has the weights of a policy; one without weights for a function."""
    inner = getattr(policy, "policy", policy)
    if isinstance(inner, nn.Module):
        return inner
    return policy if isinstance(policy, nn.Module) else nn.Module()


def _tensors(observations: Observations) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(values) for name, values in observations.items()}


def _stable_baselines(policy: Any) -> Callable[[Observations], Any]:
    def score(observations: Observations) -> Any:
        policy.set_training_mode(False)
        _check_trained_on(policy.observation_space, observations)
        seen, _ = policy.obs_to_tensor(dict(observations))
        if hasattr(policy, "q_net"):
            return policy.q_net(seen)
        return policy.get_distribution(seen).distribution.logits

    return score


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


def _torchrl(policy: Any) -> Callable[[Observations], Any]:
    tensordict = import_extra("tensordict", "an actor of TorchRL", "torchrec")

    def score(observations: Observations) -> Any:
        seen = tensordict.TensorDict(_tensors(observations), batch_size=[len(next(iter(observations.values())))])
        if callable(getattr(policy, "get_dist", None)):
            return policy.get_dist(seen).logits
        return policy(seen)["logits"]

    return score


def _rllib(policy: Any) -> Callable[[Observations], Any]:
    def score(observations: Observations) -> Any:
        return policy.forward_inference({"obs": _tensors(observations)})["action_dist_inputs"]

    return score


def _module(policy: nn.Module) -> Callable[[Observations], Any]:
    def score(observations: Observations) -> Any:
        return policy.eval()(_tensors(observations))

    return score
