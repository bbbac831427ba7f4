"""SurCo as a solver, and its training in rounds: collect costs, fit the cost network, improve the surrogate network."""

import math
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from torch import Tensor

from baselines.learning.cost_learner import CostLearner
from baselines.learning.encoder import TaskBatch, quantized_tensor
from baselines.learning.solver import Count, LearnedSolver, Positive
from baselines.learning.training import Learner, descend, torch_generator
from baselines.surco.network import SurCoNetwork, assign, straight_through
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Record
from shardgym.tasks.task import ShardingTask


@dataclass(frozen=True, config=CONFIG)
class SurCoSettings(Record):
    """Settings of training and solving. A round collects costs, fits the cost network, and updates the other."""

    #: `prior` takes the predicted surrogate costs; `zero` starts from random ones and improves them for every task;
    #: `hybrid` improves the predicted ones.
    variant: Literal["prior", "zero", "hybrid"] = "hybrid"
    temperature: Positive = 0.1  #: weight of the entropy in the relaxed assignment
    zero_steps: Count = 60  #: gradient steps on the surrogate costs of a task (released code: 20)
    zero_learning_rate: Positive = 0.05  #: their learning rate; falls linearly to 0 (released code: 0.05 throughout)
    #: Random costs of `zero`, or predicted ones of `hybrid` with noise, that are improved (released code: 1).
    starts: Count = 16
    surrogate_updates: Count = 10  #: surrogate updates per round, each a training step (released code: 10)
    update_tasks: Count = 20  #: tasks per surrogate update (released code: 20)
    collected_tasks: Count = 64  #: tasks per round to price plans for (released code: 10)
    cost_updates: Count = 300  #: updates of the cost network per round (released code: 300)
    cost_batch: Count = 64  #: plans per cost update (released code: 64)
    learning_rate: Positive = 3e-3  #: learning rate of the cost network; falls linearly to 0 (paper: 5e-4)
    surrogate_learning_rate: Positive = 1e-2  #: likewise for the surrogate network (paper: 5e-4)


class Improved(NamedTuple):
    """The best surrogate costs found by gradient steps."""

    costs: Tensor  #: shape (B, T, D)
    log_ms: Tensor  #: the estimate of the rounded assignment by these, shape (B,)


def improve(network: SurCoNetwork, batch: TaskBatch, costs: Tensor, settings: SurCoSettings) -> Improved:
    """Take gradient steps on surrogate costs, (B, T, D); return those of every task with the lowest estimate."""
    costs = costs.detach().clone()
    best = costs.clone()
    lowest = torch.full((len(batch),), math.inf)
    latents = network.latents(batch).detach()
    optimizer = torch.optim.Adam([costs], lr=settings.zero_learning_rate)
    with torch.enable_grad():
        costs.requires_grad_()
        for step in range(settings.zero_steps + 1):
            assignment = straight_through(assign(costs, batch, settings.temperature))
            estimate = network.log_ms(batch, latents, assignment)
            compared = quantized_tensor(estimate.detach())
            better = compared < lowest
            lowest = torch.where(better, compared, lowest)
            best = torch.where(better[:, None, None], costs.detach(), best)
            (costs.grad,) = torch.autograd.grad(estimate.sum(), [costs])
            optimizer.param_groups[0]["lr"] = settings.zero_learning_rate * (1 - step / (settings.zero_steps + 1))
            optimizer.step()
    return Improved(best, lowest)


class SurCoLearner(CostLearner):
    """Trains both networks."""

    network: SurCoNetwork
    other = "surrogate"

    def _improve(self, rng: np.random.Generator) -> dict[str, float]:
        """Update the surrogate network once, on relaxed assignments of random tasks."""
        batch = self._batch.take(self._draw_tasks(rng, self._settings.update_tasks))
        assignment = assign(self.network.surrogate_costs(batch), batch, self._settings.temperature)
        loss = self.network.log_ms(batch, self.network.latents(batch).detach(), assignment.soft).mean()
        descend(self.optimizers[1], loss)
        return {"surrogate_loss": float(loss.detach())}

    @torch.no_grad()
    def _collect(self, rng: np.random.Generator) -> None:
        """Price four plans of random tasks: by predicted and by random surrogate costs, as they are and improved."""
        chosen = self._draw_tasks(rng, self._settings.collected_tasks)
        batch = self._batch.take(chosen)
        predicted = self.network.surrogate_costs(batch)
        noise = torch.rand(predicted.shape, generator=torch_generator(rng))
        starts = [predicted + self._settings.temperature * noise, noise]
        improved = (
            [improve(self.network, batch, costs, self._settings).costs for costs in starts] if self.replay else []
        )
        devices = [assign(costs, batch, self._settings.temperature).devices for costs in [*starts, *improved]]
        plans = torch.stack(devices, dim=1)
        # The rounded assignment may exceed memory a little; such plans have no cost and are left out.
        self._price(chosen, plans, torch.ones(plans.shape[:2], dtype=torch.bool))


#: Nodes of the search tree at most: the same on a machine of any speed.
_NODES = 10_000
#: Costs and memory are scaled to this: HiGHS allows errors of a millionth, in any unit.
_SCALE = 1000.0


def cheapest_assignment(task: ShardingTask, costs: Floats) -> Ints:
    """Return the devices of whole tables, (T,), that minimise the sum of costs, (T, D), within the devices' memory.

    Costs are finite, and are quantized, see `shardgym.costs.ties`. HiGHS proves the optimum unless the search tree gets
    too large.

    Raises:
        NoFeasiblePlanError: there is no solution, or HiGHS found none.
    """
    tables = task.num_tables
    devices = task.num_devices
    costs = quantized(costs)
    sizes = np.array([task.table_bytes(table) for table in task.tables], dtype=np.int64)
    memory = np.array(task.capacity_bytes, dtype=np.int64)
    cheapest: Ints = np.argmin(costs, axis=1)
    if _fits(cheapest, sizes, memory):
        return cheapest
    # One variable per table and device, table after table; rows: each table once, then memory.
    places = np.arange(tables * devices)
    scale = _SCALE / float(memory.max())
    values = np.concatenate([np.ones(tables * devices), np.repeat(sizes * scale, devices)])
    rows = np.concatenate([places // devices, tables + places % devices])
    matrix = csr_array((values, (rows, np.concatenate([places, places]))))
    upper = np.concatenate([np.ones(tables), memory * scale])
    lower = np.concatenate([np.ones(tables), np.full(devices, -np.inf)])
    # Only differences on a table matter.
    excess = costs - costs.min(axis=1, keepdims=True)
    scaled = excess / (float(excess.max()) or 1.0) * _SCALE
    found = milp(
        scaled.ravel(), integrality=np.ones(len(places)), bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, lower, upper), options={"mip_rel_gap": 0.0, "node_limit": _NODES},
    )  # fmt: skip
    if found.x is not None:
        assigned: Ints = found.x.reshape(tables, devices).argmax(axis=1)
        if _fits(assigned, sizes, memory):
            return assigned
    raise NoFeasiblePlanError("no assignment of whole tables that fits into memory was found")


def _fits(assigned: Ints, sizes: Ints, memory: Ints) -> bool:
    used = np.zeros(len(memory), dtype=np.int64)
    np.add.at(used, assigned, sizes)
    return bool((used <= memory).all())


class SurCo(LearnedSolver[SurCoNetwork]):
    """SurCo (Ferber et al., ICML 2023): learned linear costs whose cheapest assignment is the plan.

    Every table has a surrogate cost on every device. The plan is the assignment of whole tables with the least total
    surrogate cost that fits into memory. Training and gradient steps choose surrogate costs whose plan is good by a
    differentiable estimate, DreamShard's cost network, through the assignment. Solving does not query the oracle.

    Differences from the published system (paper, section 5.1 and appendix B.2; code, `table_sharding/`):

    - The relaxed assignment has an entropy term and exact gradients in torch. The paper differentiates a quadratic
      program with CVXPYLayers.
    - Gradients reach the surrogate costs in every variant (`straight_through`). The released `zero` and `hybrid` have
      none, so their plans follow from the initial costs.
    - Solving uses the same assignment as training. The released `prior` adds squared device loads when solving.
    - The estimate is that of the slowest device by the cost network's three heads; see `SurCoNetwork.log_ms`.
    - The surrogate network is trained on the relaxed assignment, because rounded gradients hold at one corner only.
    - Predicted surrogate costs are centred and scaled for each task, which changes no plan.
    - Devices may stay empty; the released code requires a table on each.
    - Surrogate costs depend on the other tables and on the plan of a greedy rule, for balance; see `SurrogateNetwork`.
    - `zero` and `hybrid` improve several starts at once, and use the costs with the lowest estimate on the way. The
      released code uses the last costs of one start.
    - Training prices more plans, half of them after gradient steps, and has higher learning rates.

    See `LearnedSolver` for arguments, fitting and files. All variants take the same weights; `zero` uses the cost
    network alone.
    """

    name: ClassVar[str] = "surco"
    settings_type: ClassVar[type[Record]] = SurCoSettings
    network_type: ClassVar[type[Any]] = SurCoNetwork
    learner_type: ClassVar[type[Learner]] = SurCoLearner
    solving_settings: ClassVar[frozenset[str]] = frozenset(
        {"variant", "temperature", "zero_steps", "zero_learning_rate", "starts"}
    )
    default_steps: ClassVar[int] = 100
    settings: SurCoSettings

    def place(self, network: SurCoNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the cheapest assignment by surrogate costs; `cost` is not queried."""
        del cost
        batch = TaskBatch.of([task])
        if self.settings.variant == "prior":
            costs = network.surrogate_costs(batch)[0]
        else:
            shape = (self.settings.starts, task.num_tables, task.num_devices)
            drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
            starts = drawn.to(torch.get_default_dtype())
            if self.settings.variant == "hybrid":
                starts[0] = 0.0
                starts += network.surrogate_costs(batch)
            batch = batch.take(torch.zeros(self.settings.starts, dtype=torch.int64))
            improved = improve(network, batch, starts, self.settings)
            costs = improved.costs[improved.log_ms.argmin()]
        return ShardingPlan.table_wise(task, cheapest_assignment(task, costs.double().numpy()).tolist())
