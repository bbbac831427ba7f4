"""AutoShard as a solver: what it is, and where it differs from the published code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from baselines.autoshard.episodes import place_by_score
from baselines.autoshard.learner import AutoShardLearner, AutoShardSettings
from baselines.autoshard.network import COST_WIDTHS, SCORE_WIDTHS, STATE, VALUE_WIDTHS, AutoShardNetwork
from baselines.learning.encoder import ENCODER_WIDTHS
from baselines.learning.oracle import TrainingOracle
from baselines.learning.solver import LearnedSolver
from baselines.learning.tables import FeatureScale
from baselines.learning.training import Learner
from shardgym.costs.base import CostModel
from shardgym.plan import ShardingPlan
from shardgym.records import Record
from shardgym.task import ShardingTask


class AutoShard(LearnedSolver[AutoShardNetwork]):
    """AutoShard (Zha et al., KDD 2022): whole tables, placed by a recurrent policy that balances compute.

    Tables come up in descending order of predicted cost, and each goes to the device with the highest score among
    those with room. The policy sees the sequence of tables through an LSTM, and of every device its tables, predicted
    cost and bytes; it takes any number of tables and devices. Solving asks no oracle.

    Training is that of IMPALA (arXiv:1802.01561). Actors, which are the rows of a native vector environment, play the
    episodes of several updates; a learner makes the updates one after the other. So from the second on, the policy that
    learns is no longer the one that played. `vtrace` corrects for that, with both ratios clipped at 1.

    Where it differs from the published code (`bench.py`, `training.py`, `run_autoshard.py`):

    - Devices without room are masked. There, a plan that overflows memory earns a negative reward, and one that the
      trained policy makes ends the program. Here an episode earns -1 when a table fits nowhere any more.
    - `objective="cost"` rewards low cost, as all papers since do. The published reward, the least loaded device's
      compute over the most loaded one's, prefers a plan with a slower slowest device if only the fastest one is slower,
      too, and leaves communication out.
    - The value depends on the devices, too. There it sees the tables alone and is the same whatever was placed where,
      so that V-trace has nothing to carry back but the last reward.
    - Predicted costs in the policy are relative to the task's even share, bytes to the device's memory, and errors of
      the cost layers to the mean of their plan: there, one task or one kind of tasks was trained on.
    - Amounts in the table features are logarithms, scaled by the tables of all training tasks.
    - The cost layers start from random plans and have one update with each of the policy's instead of twenty, which
      would take most of the time.
    - Sequences are whole episodes instead of 100 steps, and an update has several episodes on each of some tasks.

    See `LearnedSolver` for arguments, fitting and files, and `AutoShardSettings` for the settings.
    """

    name: ClassVar[str] = "autoshard"
    settings_type: ClassVar[type[Record]] = AutoShardSettings
    default_steps: ClassVar[int] = 200
    architecture: ClassVar[dict[str, Any]] = {
        "table encoder": ENCODER_WIDTHS,
        "cost": COST_WIDTHS,
        "state": STATE,
        "score": SCORE_WIDTHS,
        "value": VALUE_WIDTHS,
    }
    settings: AutoShardSettings

    def build_network(self, scale: FeatureScale) -> AutoShardNetwork:
        """See `LearnedSolver`."""
        return AutoShardNetwork(scale)

    def make_learner(
        self, network: AutoShardNetwork, tasks: Sequence[ShardingTask], oracle: TrainingOracle, steps: int
    ) -> Learner:
        """See `LearnedSolver`."""
        return AutoShardLearner(network, tasks, oracle, steps, self.settings)

    def place(self, network: AutoShardNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the plan of the highest scores; `cost` and `seed` are not used.

        Raises:
            NoFeasiblePlanError: a table fits nowhere any more.
        """
        del cost, seed
        return ShardingPlan.table_wise(task, place_by_score(network, task))
