"""SurCo's networks: surrogate costs, a differentiable assignment by them, and DreamShard's cost network as the loss."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baselines.learning.cost_learner import DEVICE_PHASES, CostNetwork
from baselines.learning.encoder import LATENT, FeatureScale, TableEncoder, TaskBatch, mlp, quantized_tensor

#: Numbers of the encoding of a device.
DEVICE_CODE = 8
#: Features of a table on a device, see `LoadFeatures`.
PAIR_FEATURES = 3
#: Layers that turn a table, the mean table of its task, what it costs, a device and its load into a surrogate cost.
SCORE_WIDTHS = (2 * LATENT + 2 * len(DEVICE_PHASES) + PAIR_FEATURES + DEVICE_CODE, 64, 64, 1)
#: Root mean square of predicted surrogate costs: that of numbers between 0 and 1, which `zero` starts from.
SPREAD = 12**-0.5
#: Width of the soft maximum over devices, as a share of the slowest one's time.
SOFTNESS = 0.05
#: Devices differ by some percent of their time: this scales differences, and single tables, to about 1.
SHARE_UNIT = 0.1
#: Maximum lead of a device, in costs of the table that is placed; longer ones count as equal.
MOST_TABLES = 3.0
#: Newton steps for the prices of memory; it is convex, and mostly solved after ten.
_NEWTON_STEPS = 25
#: Keeps the Newton steps finite where all tables are on one device with certainty.
_DAMPING = 1e-4


class LoadFeatures(NamedTuple):
    """Features from a greedy rule by the cost network.

    The rule places tables in descending order of predicted cost alone, each on the device with the least added cost.
    Times are relative to the mean device.
    """

    tables: Tensor  #: times of each table in `DEVICE_PHASES`, shape (B, T, 3)
    devices: Tensor  #: final times of each device minus the mean over devices, shape (B, D, 3)
    #: Lead over the least loaded device, as a share and in the table's costs, and 1 on its device, shape (B, T, D, 3).
    pairs: Tensor


@torch.no_grad()
def load_features(cost: CostNetwork, batch: TaskBatch) -> LoadFeatures:
    """Return the features of tasks by a cost network, without gradients."""
    exists = batch.table_mask[..., None]
    latents = cost.encoder(batch.features) * exists
    # An untrained network may predict negative times.
    tables = cost.device_ms(latents).clamp(min=1e-3 * cost.unit_ms[:-1]) * exists
    table_ms = quantized_tensor(tables.sum(dim=-1))
    order = table_ms.masked_fill(~batch.table_mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rows = torch.arange(len(batch))
    loads = torch.zeros(batch.device_mask.shape)
    ahead = torch.zeros(*table_ms.shape, loads.shape[1])
    on_device = torch.zeros_like(ahead)
    for table in order.T:
        open_loads = loads.masked_fill(~batch.device_mask, torch.inf)
        least = open_loads.argmin(dim=1)
        ahead[rows, table] = loads - loads[rows, least][:, None]
        on_device[rows, table, least] = 1.0
        loads[rows, least] += table_ms[rows, table]
    ahead *= exists & batch.device_mask[:, None]
    on_device *= exists
    devices = cost.device_ms(on_device.transpose(1, 2) @ latents) * batch.device_mask[..., None]
    num_devices = batch.device_mask.sum(dim=1)[:, None, None]
    mean = devices.sum(dim=1, keepdim=True) / num_devices
    unit = SHARE_UNIT * mean.sum(dim=-1, keepdim=True).clamp(min=1e-2 * cost.unit_ms[-1])
    in_tables = ahead / table_ms.clamp(min=1e-3 * cost.unit_ms[-1])[..., None]
    pairs = torch.stack([ahead / unit, in_tables.clamp(max=MOST_TABLES), on_device], dim=-1)
    return LoadFeatures(tables / unit, (devices - mean) / unit, pairs)


class SurrogateNetwork(nn.Module):
    """Predicts the surrogate cost of every table on every device.

    As in the paper (appendix B.2), DreamShard's encoder reads tables, and a sinusoidal encoding of devices gives equal
    devices different costs. The released code has one output per device instead, which fixes their number. The mean of
    the encoded tables and `LoadFeatures` describe the other tables; without these, similar tables would all go to one
    device. A table's cost is lower by 1 on the device that the greedy rule chooses, so that the layers learn changes to
    that rule's plan.
    """

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.encoder = TableEncoder(scale)
        self.score = mlp(*SCORE_WIDTHS)

    def forward(self, batch: TaskBatch, loads: LoadFeatures) -> Tensor:
        """Return surrogate costs, shape (B, T, D)."""
        latents = self.encoder(batch.features)
        exists = batch.table_mask[..., None]
        mean = (latents * exists).sum(dim=1) / exists.sum(dim=1)
        num_tables = latents.shape[1]
        num_devices = batch.device_mask.shape[1]
        tables = torch.cat([latents, mean[:, None].expand_as(latents), loads.tables], dim=-1)
        # Sines and cosines of the numbers of devices with wave lengths from 2 pi to 200 pi, shape (D, 8).
        half = DEVICE_CODE // 2
        frequencies = torch.exp(-math.log(100.0) * torch.arange(half) / (half - 1))
        angles = torch.arange(num_devices)[:, None] * frequencies
        codes = torch.cat([angles.sin(), angles.cos()], dim=-1).expand(len(batch), -1, -1)
        devices = torch.cat([loads.devices, codes], dim=-1)
        everything = [
            tables[:, :, None].expand(-1, -1, num_devices, -1),
            devices[:, None].expand(-1, num_tables, -1, -1),
            loads.pairs,
        ]
        scores = self.score(torch.cat(everything, dim=-1))[..., 0] - loads.pairs[..., 2]
        # What all devices have in common, and the scale, decide nothing; of a growing scale, gradients would vanish.
        placed = batch.table_mask[:, :, None] & batch.device_mask[:, None]
        scores = scores - (scores * placed).sum(dim=2, keepdim=True) / placed.sum(dim=2, keepdim=True).clamp(min=1)
        squares = (scores.square() * placed).sum(dim=(1, 2), keepdim=True) / placed.sum(dim=(1, 2), keepdim=True)
        costs: Tensor = SPREAD * scores / (squares + 1e-12).sqrt()
        return costs


class SurCoNetwork(nn.Module):
    """The cost network and the surrogate network, which share no weights."""

    def __init__(self, scale: FeatureScale) -> None:
        super().__init__()
        self.cost = CostNetwork(scale)
        self.surrogate = SurrogateNetwork(scale)

    def surrogate_costs(self, batch: TaskBatch) -> Tensor:
        """Return predicted surrogate costs, shape (B, T, D)."""
        return self.surrogate(batch, load_features(self.cost, batch))  # type: ignore[no-any-return]

    def latents(self, batch: TaskBatch) -> Tensor:
        """Return the cost network's latents of tables, zeros where padded, shape (B, T, 32)."""
        latents: Tensor = self.cost.encoder(batch.features) * batch.table_mask[..., None]
        return latents

    def log_ms(self, batch: TaskBatch, latents: Tensor, assignment: Tensor) -> Tensor:
        """Return the logarithm of plans' costs by the cost network, with soft maxima over devices, shape (B,).

        The cost sums the three heads of the slowest device. The forward exchange, which has no head, follows it and
        takes as long as the backward exchange. DreamShard's overall head takes maxima of latents over devices, which
        gives few tables a gradient, and ranks good plans worse. `assignment` is the share of every table on every
        device, shape (B, T, D).
        """
        phases = self.cost.device_ms(torch.einsum("btd,btk->bdk", assignment, latents))
        # An untrained network may predict negative times.
        least = 1e-2 * self.cost.unit_ms[-1]
        total = torch.zeros(len(batch))
        for device_ms in (phases.sum(dim=-1), phases[..., DEVICE_PHASES.index("backward_comm")]):
            masked = device_ms.masked_fill(~batch.device_mask, -torch.inf)
            width = SOFTNESS * masked.detach().amax(dim=1, keepdim=True).clamp(min=least)
            total = total + width[:, 0] * torch.logsumexp(masked / width, dim=1)
        return torch.log(total.clamp(min=least))


class Assignment(NamedTuple):
    """A relaxed assignment and its rounding."""

    soft: Tensor  #: share of every table on every device, with gradients, shape (B, T, D)
    devices: Tensor  #: devices with the lowest priced costs; may exceed memory by about a table each, shape (B, T)


def assign(costs: Tensor, batch: TaskBatch, temperature: float) -> Assignment:
    """Solve the relaxed assignment problem of each task.

        minimise  sum over t, d of  costs[t, d] x[t, d] + temperature x[t, d] log x[t, d]
        subject to  sum over d of x[t, d] = 1  and  sum over t of bytes[t] x[t, d] <= memory[d].

    Given a price of memory per device, 0 where there is room, the solution is a softmax over devices of minus the
    priced costs. Newton's method on the dual problem finds the prices. Gradients are those of the solution, by implicit
    differentiation: one more, differentiable Newton step updates the prices. Costs have shape (B, T, D). The entropy
    makes gradients useful: those of the linear program are 0 almost everywhere.
    """
    scaled = (costs / temperature).masked_fill(~batch.device_mask[:, None], torch.inf)
    # Shares of each device's memory; padded tables and devices have none.
    memory = batch.memory_bytes.clamp(min=1).to(costs.dtype)
    shares = batch.table_bytes[..., None].to(costs.dtype) / memory[:, None] * batch.device_mask[:, None]
    with torch.no_grad():
        prices = torch.zeros_like(memory)
        for _ in range(_NEWTON_STEPS):
            soft, excess = _solution(scaled, shares, prices)
            if bool(((excess <= 1e-5) & ((prices <= 0) | (excess >= -1e-5))).all()):
                break
            step = _newton_step(soft, shares, excess, (prices > 0) | (excess > 0))
            prices = (prices + step.clamp(-5.0, 5.0)).clamp(min=0.0)
        soft, _ = _solution(scaled, shares, prices)
    if costs.requires_grad and bool((prices > 0).any()):
        _, excess = _solution(scaled, shares, prices)
        change = _newton_step(soft, shares, excess, prices > 0)
        prices = prices + (change - change.detach())
    soft, _ = _solution(scaled, shares, prices)
    return Assignment(soft, quantized_tensor(scaled + shares * prices[:, None]).argmin(dim=-1).detach())


def _solution(scaled: Tensor, shares: Tensor, prices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relaxed assignment under prices, and every device's overflow as a share of its memory, (B, D)."""
    soft = torch.softmax(-(scaled + shares * prices[:, None]), dim=-1)
    return soft, (shares * soft).sum(dim=1) - 1.0


def _newton_step(soft: Tensor, shares: Tensor, excess: Tensor, active: Tensor) -> Tensor:
    """Return the change of prices after which active devices are exactly full, shape (B, D)."""
    # Minus the derivative of the excess by the prices.
    held = shares * soft
    slope = torch.diag_embed((shares * held).sum(dim=1)) - held.transpose(1, 2) @ held
    both = active[:, :, None] & active[:, None]
    identity = torch.eye(slope.shape[-1])
    matrix = torch.where(both, slope, 0.0) + identity * torch.where(active, _DAMPING, 1.0)[:, None]
    step: Tensor = torch.linalg.solve(matrix, torch.where(active, excess, 0.0))
    return step


def straight_through(assignment: Assignment) -> Tensor:
    """Return the rounded assignment, 0 or 1, with gradients of the relaxed one, shape (B, T, D)."""
    hard = torch.nn.functional.one_hot(assignment.devices, assignment.soft.shape[-1])
    return assignment.soft + (hard - assignment.soft).detach()
