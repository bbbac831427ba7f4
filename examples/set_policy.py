"""A policy for MaskablePPO that sees a device as the sum of what it holds, and treats all devices alike."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from shardgym.envs.observation import DEVICE_FEATURES, TABLE_FEATURES


class SetFeatures(BaseFeaturesExtractor):
    """Scores every action; needs observation="full".

    A table goes through an encoder; a device is the sum of its tables (as in DreamShard, arXiv:2210.02023) next to its
    features; one network scores every device for the table to place.

    Args:
        space: the observation space.
        width: of all layers.
    """

    def __init__(self, space: spaces.Dict, width: int = 64) -> None:
        self.actions, self.shards = space["action_mask"].shape[0], space["waiting"].shape[0]
        self.devices = space["devices"].shape[0] // len(DEVICE_FEATURES)
        super().__init__(space, features_dim=self.actions + width)
        self.others = [name for name in ("progress", "remaining", "splits") if name in space.spaces]
        scene = 2 * width + sum(space[name].shape[0] for name in self.others)
        self.table = nn.Sequential(nn.Linear(len(TABLE_FEATURES), width), nn.ReLU(), nn.Linear(width, width))
        self.device = nn.Sequential(nn.Linear(len(DEVICE_FEATURES) + width, width), nn.ReLU())
        self.device_score = nn.Sequential(nn.Linear(scene + width, width), nn.ReLU(), nn.Linear(width, 1))
        self.halving_score = nn.Linear(scene, 1)
        self.summary = nn.Sequential(nn.Linear(scene, width), nn.ReLU())

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Return the scores of all actions and a summary, shape (batch, actions + width)."""
        tables = self.table(seen["tables"].unflatten(1, (self.shards, -1)))
        held = seen["membership"].unflatten(1, (self.shards, self.devices)).transpose(1, 2)
        features = seen["devices"].unflatten(1, (self.devices, -1))
        devices = self.device(torch.cat([features, held @ tables], dim=2))
        exists = features[:, :, :1]
        mean = (devices * exists).sum(1) / exists.sum(1).clamp(min=1)
        scene = torch.cat([self.table(seen["table"]), mean, *(seen[name] for name in self.others)], dim=1)
        at_device = torch.cat([scene.unsqueeze(1).expand(-1, self.devices, -1), devices], dim=2)
        scores = [self.device_score(at_device).squeeze(2)]
        if self.actions > self.devices:
            scores.append(self.halving_score(scene))
        return torch.cat([*scores, self.summary(scene)], dim=1)


class _Scores(nn.Module):
    """Takes the scores out of the features."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.actions = actions

    def forward(self, features: Tensor) -> Tensor:
        return features[:, : self.actions]


class SetPolicy(MaskableMultiInputActorCriticPolicy):
    """Acts by the scores of `SetFeatures`; a small network on top of them estimates the value."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        keywords |= {"features_extractor_class": SetFeatures, "net_arch": {"pi": [], "vf": [64]}}
        super().__init__(*arguments, **keywords)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = _Scores(int(self.action_space.n))
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)
