"""Playing native vector environments and Gymnasium's wrappers with the same actions."""

from __future__ import annotations

from collections import Counter

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from shardgym import PlanCost

TABLE_WISE, COLUMN_WISE = "ShardGym/TableWise-v0", "ShardGym/ColumnWise-v0"
ANY_WISE = "ShardGym/AnyWise-v0"

#: Relative difference of times that is taken for rounding: how many plans are predicted together may change last bits.
ROUNDING = 1e-9


def native(env_id, num_envs=3, **settings):
    return gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **settings)


def wrapped(env_id, num_envs=3, kind="sync", autoreset_mode="NextStep", **settings):
    options = {"autoreset_mode": autoreset_mode} | ({"context": "spawn"} if kind == "async" else {})
    return gymnasium.make_vec(
        env_id, num_envs=num_envs, vectorization_mode=kind, vector_kwargs=options, **settings
    )  # fmt: skip


def some_actions(rng, masks, illegal):
    """Legal actions at random, and now and then one that need not be: below, inside or beyond the action space."""
    wild = rng.integers(-1, masks.shape[1] + 2, len(masks))
    tame = [rng.choice(np.flatnonzero(mask)) if mask.any() else 0 for mask in masks]
    return np.where(rng.random(len(masks)) < illegal, wild, tame)


def assert_same(one, other):
    """Compare what `reset` or `step` returned, types of arrays included; times may differ by rounding."""
    observations, twins = dict(one[0]), dict(other[0])
    if "times" in observations:
        np.testing.assert_allclose(observations.pop("times"), twins.pop("times"), rtol=1e-6)
    assert data_equivalence(observations, twins, exact=True)
    for array, twin in zip(one[1:-1], other[1:-1], strict=True):
        assert array.dtype == twin.dtype
        # Dense rewards are differences of times, which are at most a few hundred milliseconds here.
        np.testing.assert_allclose(array, twin, rtol=ROUNDING, atol=ROUNDING if array.dtype == float else 0)
    assert_same_infos(one[-1], other[-1])


def assert_same_infos(infos, others):
    assert infos.keys() == others.keys()
    for name, said in infos.items():
        if isinstance(said, dict):
            assert_same_infos(said, others[name])
        elif name == "cost":
            for cost, twin in zip(said, others[name], strict=True):
                assert_same_cost(cost, twin)
        elif name in {"cost_ms", "reference_ms", "ratio"}:
            np.testing.assert_allclose(said, others[name], rtol=ROUNDING)
        else:
            assert data_equivalence(said, others[name], exact=True), (name, said, others[name])


def assert_same_cost(cost, other):
    assert type(cost) is type(other)
    if isinstance(cost, PlanCost):
        figures, others = cost.to_dict(), other.to_dict()
        del figures["per_device"], others["per_device"]
        assert figures == others
        np.testing.assert_allclose(cost.per_device, other.per_device, rtol=ROUNDING)


def play_together(envs, seed, steps, illegal=0.1):
    """Step all environments with the same actions, compare, and count outcomes."""
    rng, outcomes = np.random.default_rng(seed), Counter()
    returned = [env.reset(seed=seed) for env in envs]
    for _ in range(steps):
        for other in returned[1:]:
            assert_same(returned[0], other)
        actions = some_actions(rng, returned[0][0]["action_mask"], illegal)
        returned = [env.step(actions) for env in envs]
        infos = returned[0][-1]
        outcomes.update(infos.get("final_info", infos).get("outcome", ()))
    del outcomes[None]
    return outcomes
