"""TableWiseVectorEnv: many table-wise environments, stepped together."""

from __future__ import annotations

from shardgym.envs.table_wise import TableWiseEnv
from shardgym.envs.vector.base import PlacementVectorEnv


class TableWiseVectorEnv(PlacementVectorEnv):
    """`TableWiseEnv` many times, as arrays; what `make_vec("ShardGym/TableWise-v0", num_envs=N)` makes.

    Observations, rewards, ends, infos and drawn tasks are those of Gymnasium's wrappers `SyncVectorEnv` and
    `AsyncVectorEnv` around N single environments with the same arguments and seeds, row by row and bit by bit. A step
    is a few dozen array operations whatever N is; plans that are finished in the same step are scored together.

    **Episodes.** Environments draw their tasks apart, each with a generator of its own: `reset(seed=s)` seeds
    environment i with s + i. Options of `reset` hold for all environments; `options={"reset_mask": mask}` resets those
    where the mask, booleans of shape (N,), is true.

    **Autoreset.** What follows an end is declared in `metadata["autoreset_mode"]`.

    - "NextStep", the default, as for Gymnasium's wrappers: the next step ignores the action, resets the environment and
      earns 0. In the observation of the end `action_mask` is all zero.
    - "SameStep": the environment is reset in the step that ends the episode. Observation and info of the end are in
      `infos["final_obs"]` and `infos["final_info"]`.
    - "Disabled": the environment must be reset with `reset_mask` before the next step.

    **Infos.** Arrays with one entry per environment, or dictionaries of such; `_NAME` says which entries of NAME count.
    `plan` and `cost` are the objects that the single environment gives.

    **Cost.** An oracle of the simulator predicts all plans of a step with equally many devices in one call, and so all
    placements with dense rewards. Any other cost model is asked to `evaluate` the plans of each task together, so that
    measured costs interleave them; one that cannot measure at all fails all of them. For dense rewards it is asked
    about one environment after the other, which is no faster than Gymnasium's wrappers.

    `action_masks()` returns booleans of shape (N, D). `render()` returns one picture or text per environment.

    Args:
        num_envs: N.
        autoreset_mode: "NextStep", "SameStep", "Disabled", or a `gymnasium.vector.AutoresetMode`.
        settings: keyword arguments of `TableWiseEnv`.

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such mode; or no such suite, pool, cost, order, observation or reward.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8, suite="quick-v1", cost="roofline")
        >>> observations, infos = envs.reset(seed=0)
        >>> actions = observations["action_mask"].argmax(axis=1)
        >>> observations, rewards, terminations, truncations, infos = envs.step(actions)
        >>> observations["table"].shape, rewards.shape
        ((8, 25), (8,))
    """

    single_env = TableWiseEnv
