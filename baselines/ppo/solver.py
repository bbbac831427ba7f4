"""`ppo`, `ppo_columns`, `ppo_any`: policies over devices that play the native vector environments."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import gymnasium
import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from baselines.learning.encoder import FeatureScale
from baselines.learning.solver import Count, LearnedSolver, Positive, Weight
from baselines.learning.training import Learner, Setup
from baselines.ppo.episode import MOST_SPLITS, ORDER, Episodes
from baselines.ppo.group_learner import GroupLearner, GroupSettings
from baselines.ppo.set_network import SetNetwork
from neuroshard import NeuroShard
from neuroshard.plus.solver import NeuroShardPlus
from shardgym.costs.base import CostModel, additive_costs
from shardgym.errors import InputError, NoFeasiblePlanError, import_extra
from shardgym.plans.plan import ShardingPlan
from shardgym.records import CONFIG, Record, Whole
from shardgym.tasks.task import ShardingTask

#: Halvings in an episode at most. Plans of NeuroShard, whose published search has 10, take more where memory is tight.
MAX_SPLITS = 16

#: What environments are made with; `Episodes` plays by the same rules.
_PLAYED_WITH: dict[str, Any] = {"order": ORDER, "observation": "timed"}
ENV_ARGUMENTS = {
    "TableWise": _PLAYED_WITH,
    "ColumnWise": _PLAYED_WITH | {"max_splits": MAX_SPLITS},
    "AnyWise": _PLAYED_WITH | {"max_splits": MOST_SPLITS},
}


@dataclass(frozen=True, config=CONFIG)
class PpoSettings(Record):
    """Training settings of `ppo`. In each step, every environment plays as long as the longest episode takes."""

    num_envs: Count = 64  #: environments that are played at once
    epochs: Count = 4  #: epochs per step
    minibatches: Count = 8  #: updates per epoch; must divide `num_envs`
    learning_rate: Positive = 1e-3  #: learning rate of Adam; falls linearly to 0
    #: Lambda of generalised advantage estimation. Episodes always end, so rewards are not discounted.
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    entropy: Weight = 0.0  #: weight of the entropy bonus
    #: Return of an episode without a plan, negative, in the task's reference costs. The reference plan earns -1.
    relative_penalty: Annotated[float, Field(lt=0)] = -5.0


@dataclass(frozen=True, config=CONFIG)
class AnySettings(GroupSettings):
    """Training settings of `ppo_any`: few updates per step, because steps alternate between numbers of devices."""

    imitation_steps: Count = 480
    imitation_updates: Count = 10
    imitated: Count = 512
    tasks: Count = 6
    episodes: Annotated[Whole, Field(ge=2)] = 16
    decisions: Count = 1024
    learning_rate: Positive = 3e-4


class PpoLearner(Learner):
    """Trains a `SetNetwork` by MaskablePPO. Every step starts new episodes: only network and optimiser outlive it.

    Every rewarded placement counts as a query.

    Raises:
        MissingDependencyError: the extra `rl` is not installed.
        InputError: `minibatches` does not divide `num_envs`.
    """

    network: SetNetwork

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        sb3_contrib = import_extra("sb3_contrib", "fitting ppo", "rl")
        from stable_baselines3.common.logger import Logger

        from baselines.ppo.policies import SetPolicy
        from shardgym.envs.sb3 import NativeVecEnv

        settings: PpoSettings = setup.settings
        if settings.num_envs % settings.minibatches:
            raise InputError(
                f"minibatches: expected a divisor of num_envs, {settings.num_envs}, got {settings.minibatches}"
            )
        self._learning_rate = settings.learning_rate
        envs = gymnasium.make_vec(
            "ShardGym/TableWise-v0", settings.num_envs, tasks=setup.tasks, cost=setup.oracle.cost, reward="relative",
            penalty=settings.relative_penalty, autoreset_mode="SameStep", **ENV_ARGUMENTS["TableWise"],
        )  # fmt: skip
        longest = max(task.num_tables for task in setup.tasks)
        with _seeded(0):
            self._model = sb3_contrib.MaskablePPO(
                SetPolicy,
                NativeVecEnv(envs),
                n_steps=longest,
                batch_size=longest * settings.num_envs // settings.minibatches,
                n_epochs=settings.epochs,
                gamma=1.0,
                gae_lambda=settings.gae_lambda,
                ent_coef=settings.entropy,
                learning_rate=lambda _: self._learning_rate,
                policy_kwargs={"network": self.network},
                device="cpu",
            )
        self._model.set_logger(Logger(folder=None, output_formats=[]))
        self.optimizers = (self._model.policy.optimizer,)

    def step(self, number: int, rng: np.random.Generator) -> dict[str, float]:
        """Play, and update the network."""
        self._learning_rate = self._settings.learning_rate * (1 - number / self._steps)
        model = self._model
        played = model.n_steps * model.n_envs
        with _seeded(int(rng.integers(2**32))):
            model.env.seed(int(rng.integers(2**32)))
            model._last_obs = None  # so that it resets the environments
            model.learn(played, log_interval=None, reset_num_timesteps=False)
        self.oracle.queries += played
        logged = model.logger.name_to_value
        figures = {
            "policy_loss": logged["train/policy_gradient_loss"],
            "value_loss": logged["train/value_loss"],
            "entropy": -logged["train/entropy_loss"],
            "reward": np.mean([episode["r"] for episode in model.ep_info_buffer]),
        }
        model.ep_info_buffer.clear()
        return {name: float(value) for name, value in figures.items()}


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators that stable-baselines3 draws from, and restore them afterwards."""
    before = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            np.random.seed(seed)
            yield
    finally:
        np.random.set_state(before)


class SetPolicySolver(LearnedSolver[SetNetwork]):
    """Plays an environment with a policy that treats devices as a set.

    Tables come in descending order of columns times pooling factor. Observations are timed: they have the compute of
    each device now and with the next table. Solving therefore queries the oracle for every device at every step; it
    must be additive, such as "simulator" and "roofline". Invalid actions are masked.

    See `LearnedSolver` for arguments, fitting and files.
    """

    episodes: ClassVar[int] = 1  #: episodes to play when solving, the cheapest plan of which is returned

    def build_network(self, scale: FeatureScale) -> SetNetwork:
        """See `LearnedSolver`; `scale` is ignored, as observations are scaled already."""
        del scale
        return SetNetwork()

    def place(self, network: SetNetwork, task: ShardingTask, cost: CostModel, seed: int) -> ShardingPlan:
        """Return the cheapest plan of `episodes`, the first of which always takes the action with the highest score.

        If all episodes get stuck, a policy that halves shards plays again with the largest tables first.
        """
        orders = (ORDER, "size") if network.halves else (ORDER,)
        splits = (MOST_SPLITS if network.every_kind else MAX_SPLITS) if network.halves else None
        for order in orders:
            try:
                game = Episodes(task, cost, order, self.episodes, splits=splits, every_kind=network.every_kind)
                return game.plan(network, episodes=self.episodes, seed=seed)
            except NoFeasiblePlanError as error:
                stuck = error
        raise NoFeasiblePlanError(f"{self.name}: {stuck}") from None

    def check_ready(self, cost: CostModel) -> None:
        """See `LearnedSolver`; also raises `InputError` if the oracle is not additive."""
        super().check_ready(cost)
        additive_costs(cost, self.name)


class Ppo(SetPolicySolver):
    """MaskablePPO of sb3-contrib (arXiv:1707.06347, arXiv:2006.14171) that plays `ShardGym/TableWise-v0`.

    Solving plays one greedy episode. Fitting needs the extra `rl`, solving does not. Settings: `PpoSettings`.
    """

    name: ClassVar[str] = "ppo"
    settings_type: ClassVar[type[Record]] = PpoSettings
    learner_type: ClassVar[type[Learner]] = PpoLearner
    default_steps: ClassVar[int] = 40
    settings: PpoSettings


class PpoColumns(SetPolicySolver):
    """A policy that plays `ShardGym/ColumnWise-v0`, where it may halve shards; `GroupLearner` trains it.

    Solving plays 16 episodes at once, the first greedily and the others with sampled actions, and returns the cheapest
    plan by the oracle. If all get stuck, it plays again with the largest tables first. Settings: `GroupSettings`.
    """

    name: ClassVar[str] = "ppo_columns"
    settings_type: ClassVar[type[Record]] = GroupSettings
    default_steps: ClassVar[int] = 160
    episodes: ClassVar[int] = 16
    settings: GroupSettings

    def make_learner(self, setup: Setup) -> Learner:
        """See `LearnedSolver`."""
        return GroupLearner(setup, NeuroShard(), splits=MAX_SPLITS)


class PpoAny(SetPolicySolver):
    """A policy that plays `ShardGym/AnyWise-v0`: it may also cut shards by rows, and replicate tables.

    It trains and solves as `PpoColumns` does, but imitates `neuroshard_plus`. Settings: `AnySettings`.
    """

    name: ClassVar[str] = "ppo_any"
    settings_type: ClassVar[type[Record]] = AnySettings
    default_steps: ClassVar[int] = 552
    episodes: ClassVar[int] = 16
    settings: AnySettings

    def build_network(self, scale: FeatureScale) -> SetNetwork:
        """See `LearnedSolver`."""
        del scale
        return SetNetwork(every_kind=True)

    def make_learner(self, setup: Setup) -> Learner:
        """See `LearnedSolver`."""
        return GroupLearner(setup, NeuroShardPlus(), splits=MOST_SPLITS, every_kind=True)
