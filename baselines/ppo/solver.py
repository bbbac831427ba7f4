"""`ppo` and `maskable_ppo`: policies over devices, trained by stable-baselines3 in the native vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from baselines.learning.oracle import TrainingOracle
from baselines.learning.solver import LearnedSolver
from baselines.learning.tables import FeatureScale
from baselines.learning.training import Learner
from baselines.ppo.episode import place_by_score
from baselines.ppo.learner import MAX_SPLITS, ORDER, PpoLearner, PpoSettings
from baselines.ppo.set_network import WIDTH, SetNetwork
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.plan import ShardingPlan
from shardgym.records import Record
from shardgym.task import ShardingTask


class MaskablePpo(LearnedSolver[SetNetwork]):
    """MaskablePPO of sb3-contrib (arXiv:1707.06347, arXiv:2006.14171) with a policy that sees devices as a set.

    It plays `ShardGym/TableWise-v0`, or with `env="ColumnWise"` the environment in which shards may be halved. Shards
    come in descending order of columns times pooling factor, and observations have times: what each device computes now
    and with the next shard. Invalid actions are masked.

    Solving plays one episode by the same rules, without the environment; the valid action with the highest score always
    wins. So the oracle is asked while solving, too, for every device at every step. It must be additive, as "simulator"
    and "roofline" are.

    Fitting needs the extra `rl`, solving does not. See `LearnedSolver` for arguments, fitting and files, and
    `PpoSettings` for the settings.
    """

    name: ClassVar[str] = "maskable_ppo"
    settings_type: ClassVar[type[Record]] = PpoSettings
    default_steps: ClassVar[int] = 40
    architecture: ClassVar[dict[str, Any]] = {"width": WIDTH}
    masks: ClassVar[bool] = True
    settings: PpoSettings

    def build_network(self, scale: FeatureScale) -> SetNetwork:
        """See `LearnedSolver`; what environments show has a scale of its own."""
        del scale
        return SetNetwork()

    def make_learner(
        self, network: SetNetwork, tasks: Sequence[ShardingTask], oracle: TrainingOracle, steps: int
    ) -> Learner:
        """See `LearnedSolver`; `MissingDependencyError` when the extra `rl` is not installed."""
        return PpoLearner(network, tasks, oracle, steps, self.settings, masks=self.masks)

    def place(self, network: SetNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the plan of an episode in which the valid action with the highest score always wins.

        Raises:
            NoFeasiblePlanError: a shard fits nowhere any more.
            InputError: the cost is not additive.
        """
        del seed
        max_splits = MAX_SPLITS if network.halves else None
        try:
            return place_by_score(network, task, self._additive(cost), ORDER, max_splits)
        except NoFeasiblePlanError as error:
            raise NoFeasiblePlanError(f"{self.name}: {error}") from None

    def check_ready(self, cost: CostModel) -> None:
        """See `LearnedSolver`; an oracle that is not additive is an `InputError`, too."""
        super().check_ready(cost)
        self._additive(cost)

    def _additive(self, cost: CostModel) -> AdditiveCosts:
        costs = cost.additive()
        if costs is None:
            raise InputError(
                f"solver '{self.name}' needs a cost that prices devices one by one, such as 'simulator' or 'roofline': "
                f"this '{cost.name}' scores whole plans only"
            )
        return costs


class Ppo(MaskablePpo):
    """PPO of stable-baselines3, which knows no masks; else as `MaskablePpo`.

    While it learns it also draws invalid actions: the environment ends the episode, which earns the penalty. When it
    solves, the valid action with the highest score wins here, too.
    """

    name: ClassVar[str] = "ppo"
    masks: ClassVar[bool] = False
