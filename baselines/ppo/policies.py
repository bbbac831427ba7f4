"""SetNetwork as a policy of sb3-contrib. Needs the extra `rl`."""

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from baselines.ppo.set_network import SetNetwork
from shardgym.errors import MissingDependencyError

try:
    from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.type_aliases import Schedule
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("sb3_contrib", "stable_baselines3"):
        raise
    raise MissingDependencyError(error.name.partition(".")[0], "rl", "a policy of sb3-contrib") from None


class SetFeatures(BaseFeaturesExtractor):
    """Scores of all actions and the value as features, which `SetPolicy` only separates."""

    def __init__(self, space: spaces.Dict, network: SetNetwork | None = None) -> None:
        super().__init__(space, features_dim=spaces.flatdim(space["action_mask"]) + 1)
        self.network = SetNetwork(every_kind="kind" in space.spaces) if network is None else network

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Return features, shape (N, actions + 1)."""
        return torch.cat(self.network(seen), dim=1)


class _Columns(nn.Module):
    """Takes columns out of the features."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, features: Tensor) -> Tensor:
        return features[:, self.columns]


class SetPolicy(MaskableMultiInputActorCriticPolicy):
    """A policy for `MaskablePPO` of sb3-contrib whose only layers are those of a `SetNetwork`, given or new."""

    def __init__(self, *arguments: Any, network: SetNetwork | None = None, **keywords: Any) -> None:
        layers = {
            "features_extractor_class": SetFeatures,
            "features_extractor_kwargs": {"network": network},
            "net_arch": {"pi": [], "vf": []},
            "ortho_init": False,
        }
        super().__init__(*arguments, **(keywords | layers))

    def _build(self, lr_schedule: Schedule) -> None:
        """Replace the last layers that the base class builds: features are scores and value already."""
        super()._build(lr_schedule)
        policy: Any = self  # The base class says that these layers are linear.
        policy.action_net = _Columns(slice(None, -1))
        policy.value_net = _Columns(slice(-1, None))
        policy.optimizer = policy.optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)
