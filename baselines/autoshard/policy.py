"""AutoShard's network, and episodes that it plays: many at once in environments, or one task greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from baselines.learning.encoder import (
    LATENT,
    FeatureScale,
    TableEncoder,
    TaskBatch,
    forward,
    linear_of,
    linears_of,
    mlp,
    quantized_tensor,
)
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.ties import quantized
from shardgym.envs.vector_env import TableWiseVectorEnv
from shardgym.errors import NoFeasiblePlanError
from shardgym.tasks.task import ShardingTask

#: Width of the recurrent state, and of a device's encoding.
STATE = 2 * LATENT

COST_WIDTHS = (LATENT, 64, 1)
SCORE_WIDTHS = (3 * STATE, 128, 128, 64, 1)
VALUE_WIDTHS = (2 * STATE, 64, 1)


class OrderedTables(NamedTuple):
    """The tables of B tasks in the order in which they are placed."""

    order: Tensor  #: indices in the task, shape (B, T)
    latents: Tensor  #: latents of the tables, shape (B, T, 32)
    states: Tensor  #: recurrent state when a table comes up, shape (B, T, 64)
    sizes: Tensor  #: bytes with optimiser state, shape (B, T)
    even_ms: Tensor  #: sum of the predicted costs of single tables over the number of devices, shape (B,)


class AutoShardNetwork(nn.Module):
    """The layers of the published code (`training.py`), which all share one table encoder.

    - Cost of a device: the sum of its tables' latents, through layers 32 -> 64 -> 1.
    - State: the next table's latent and an embedding of the share of tables placed, through a two-layer LSTM.
    - Action: the sum of the latents on a device, and an embedding of its predicted cost and bytes.
    - Score of a device: layers over state, action, and their product. Softmax over devices gives probabilities.
    - Value: layers over the state and the mean of the actions.
    """

    unit_ms: Tensor

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.encoder = TableEncoder(scale)
        self.cost = mlp(*COST_WIDTHS)
        self.progress = nn.Linear(1, LATENT)
        self.lstm = nn.LSTM(2 * LATENT, STATE, num_layers=2, batch_first=True)
        self.load = nn.Linear(2, LATENT)
        self.score = mlp(*SCORE_WIDTHS)
        self.value = mlp(*VALUE_WIDTHS)
        #: Unit of the cost layers' output, the mean of the training data.
        self.register_buffer("unit_ms", torch.ones(()))

    def device_ms(self, sums: Tensor) -> Tensor:
        """Predict the costs of non-empty devices from sums of latents, (..., 32) to (...)."""
        ms: Tensor = self.cost(sums)[..., 0] * self.unit_ms
        return ms

    def sort(self, batch: TaskBatch) -> Tensor:
        """Return table indices in descending order of predicted cost, padding last, shape (B, T)."""
        alone_ms = quantized_tensor(self.device_ms(self.encoder(batch.features)))
        alone_ms = alone_ms.masked_fill(~batch.table_mask, -torch.inf)
        return alone_ms.argsort(dim=1, descending=True, stable=True)

    def read(self, batch: TaskBatch, order: Tensor) -> OrderedTables:
        """Encode the tables of tasks in the order that `sort` returned."""
        features = batch.features.gather(1, order[..., None].expand_as(batch.features))
        exists = batch.table_mask.gather(1, order)
        latents = self.encoder(features)
        placed = torch.arange(exists.shape[1]) / exists.sum(dim=1, keepdim=True)
        states, _ = self.lstm(torch.cat([latents, self.progress(placed[..., None])], dim=-1))
        even_ms = (self.device_ms(latents.detach()).detach() * exists).sum(dim=1) / batch.device_mask.sum(dim=1)
        # An untrained network may predict times near 0, or negative ones.
        even_ms = torch.maximum(even_ms, 1e-2 * self.unit_ms)
        return OrderedTables(order, latents, states, batch.table_bytes.gather(1, order), even_ms)

    def actions(self, sums: Tensor, loads: Tensor) -> Tensor:
        """Encode devices for the policy, (..., D, 64), from sums of latents and `DeviceLoads.loads`."""
        return torch.cat([sums, self.load(loads)], dim=-1)

    def scores(self, states: Tensor, actions: Tensor) -> Tensor:
        """Score devices: states (..., 64) and actions (..., D, 64) become (..., D)."""
        states = states[..., None, :].expand_as(actions)
        scores: Tensor = self.score(torch.cat([states, actions, states * actions], dim=-1))
        return scores[..., 0]

    def values(self, states: Tensor, actions: Tensor, device_mask: Tensor) -> Tensor:
        """Predict returns, (...), from states (..., 64), actions (..., D, 64), and a mask of devices (..., D)."""
        exists = device_mask[..., None]
        mean = (actions * exists).sum(dim=-2) / exists.sum(dim=-2)
        values: Tensor = self.value(torch.cat([states, mean], dim=-1))
        return values[..., 0]


class DeviceLoads:
    """Loads of the devices of N placements: sums of latents, shape (N, D, 32), and bytes, shape (N, D)."""

    def __init__(self, network: AutoShardNetwork, memory_bytes: Tensor, even_ms: Tensor) -> None:
        self._network = network
        self._memory_bytes = memory_bytes
        self._even_ms = even_ms
        self.sums = torch.zeros(*memory_bytes.shape, LATENT)
        self.used = torch.zeros_like(memory_bytes)

    def loads(self, rows: Tensor) -> Tensor:
        """Return predicted cost over the even share and bytes over capacity of each device, shape (n, D, 2)."""
        used = self.used[rows]
        ms = self._network.device_ms(self.sums[rows]) * (used > 0)
        # Devices that only pad have no memory.
        share = used / self._memory_bytes[rows].clamp(min=1)
        return torch.stack([ms / self._even_ms[rows, None], share], dim=-1)

    def place(self, rows: Tensor, devices: Tensor, latents: Tensor, sizes: Tensor) -> None:
        """Place one table in each of these placements."""
        self.sums[rows, devices] += latents
        self.used[rows, devices] += sizes


@torch.no_grad()
def place_by_score(network: AutoShardNetwork, task: ShardingTask) -> list[int]:
    """Return the device of every table, in the task's order, choosing the device with the highest score."""
    batch = TaskBatch.of([task])
    tables = network.read(batch, network.sort(batch))
    latents, states, sizes = (values[0].numpy() for values in (tables.latents, tables.states, tables.sizes))
    cost = linears_of(network.cost)
    load = linear_of(network.load)
    into_score, *score = linears_of(network.score)
    of_state, of_action, of_product = np.split(into_score.weight, 3)
    of_states = states @ of_state + into_score.bias
    ms_in_shares = float(network.unit_ms / tables.even_ms[0])

    memory = np.array(task.capacity_bytes)
    used = np.zeros_like(memory)
    # As `AutoShardNetwork.actions` returns them.
    actions = np.zeros((task.num_devices, STATE))
    actions[:, LATENT:] = load.bias
    devices = [0] * task.num_tables
    for t, number in enumerate(tables.order[0].tolist()):
        fits = used + sizes[t] <= memory
        if not fits.any():
            table = task.tables[number]
            raise NoFeasiblePlanError(
                f"autoshard: table '{table.name}' of {task.table_bytes(table)} bytes fits on no device"
            )
        hidden = actions @ of_action + (actions * states[t]) @ of_product + of_states[t]
        scores = quantized(forward(score, np.maximum(hidden, 0, out=hidden))[:, 0])
        device = devices[number] = int(np.where(fits, scores, -np.inf).argmax())
        used[device] += sizes[t]
        action = actions[device]
        action[:LATENT] += latents[t]
        share = forward(cost, action[:LATENT])[0] * ms_in_shares
        action[LATENT:] = load(np.array([share, used[device] / memory[device]]))
    return devices


@dataclass(frozen=True)
class Episodes:
    """N played episodes, with their steps in the order of placing."""

    task: Tensor  #: row of the task in the batch that was played, shape (N,)
    order: Tensor  #: indices of the tables, shape (N, T)
    devices: Tensor  #: their devices, -1 after the last step, shape (N, T)
    allowed: Tensor  #: devices with room, shape (N, T, D)
    loads: Tensor  #: loads of devices before the step, see `AutoShardNetwork.actions`, shape (N, T, D, 2)
    log_p: Tensor  #: log probabilities of the actions, shape (N, T)
    costs: Sequence[PlanCost | None]  #: costs of the N plans; None for episodes that ended without one

    def table_devices(self) -> Tensor:
        """Return the device of every table in the tasks' own order, shape (N, T)."""
        return torch.empty_like(self.devices).scatter_(1, self.order, self.devices)

    def part(self, rows: slice) -> Episodes:
        """Return some of the episodes."""
        return Episodes(*(getattr(self, field.name)[rows] for field in fields(self)))


@torch.no_grad()
def play(
    network: AutoShardNetwork,
    envs: TableWiseVectorEnv,
    tasks: Sequence[ShardingTask],
    batch: TaskBatch,
    generator: torch.Generator,
) -> Episodes:
    """Play one episode in every environment, sampling devices from the policy.

    All tasks get equally many environments. The environments place tables in the task's order (`order="task"`), have
    been reset, and reset in the step after an episode ends.
    """
    tables = network.read(batch, network.sort(batch))
    task_of = torch.arange(envs.num_envs) * len(tasks) // envs.num_envs
    orders = [tables.order[number, : task.num_tables].tolist() for number, task in enumerate(tasks)]
    ordered = [
        replace(task, tables=tuple(task.tables[n] for n in order)) for task, order in zip(tasks, orders, strict=True)
    ]
    envs.reset(options={"task": [ordered[number] for number in task_of.tolist()]})
    masks = envs.action_masks()
    num_tables = tables.order.shape[1]
    num_devices = batch.device_mask.shape[1]
    shape = (envs.num_envs, num_tables)
    devices = torch.full(shape, -1)
    allowed = torch.zeros(*shape, num_devices, dtype=torch.bool)
    loads = torch.zeros(*shape, num_devices, 2)
    log_p = torch.zeros(shape)
    costs: list[PlanCost | None] = [None] * envs.num_envs
    held = DeviceLoads(network, batch.memory_bytes[task_of], tables.even_ms[task_of])
    playing = torch.ones(envs.num_envs, dtype=torch.bool)
    for t in range(num_tables):
        rows = torch.nonzero(playing)[:, 0]
        task = task_of[rows]
        fits = torch.from_numpy(masks[rows.numpy(), :num_devices])
        loads[rows, t] = load = held.loads(rows)
        scores = network.scores(tables.states[task, t], network.actions(held.sums[rows], load))
        log_all = scores.masked_fill(~fits, -torch.inf).log_softmax(dim=1)
        device = torch.multinomial(log_all.exp(), 1, generator=generator)[:, 0]
        devices[rows, t] = device
        allowed[rows, t] = fits
        log_p[rows, t] = log_all.gather(1, device[:, None])[:, 0]
        held.place(rows, device, tables.latents[task, t], tables.sizes[task, t])
        # Environments whose episode has ended go on with another one, in which any valid action will do.
        actions = masks.argmax(axis=1)
        actions[rows.numpy()] = device.numpy()
        _, _, ended, _, infos = envs.step(actions)
        masks = envs.action_masks()
        for row in rows[torch.from_numpy(ended)[rows]].tolist():
            playing[row] = False
            if infos["outcome"][row] == "complete":
                costs[row] = infos["cost"][row]
        if not playing.any():
            break
    return Episodes(task_of, tables.order[task_of], devices, allowed, loads, log_p, costs)
