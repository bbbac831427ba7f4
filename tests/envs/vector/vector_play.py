"""Playing native vector environments and Gymnasium's wrappers with the same actions."""

from __future__ import annotations

import dataclasses
from collections import Counter

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

#: Batches of another size may be summed in another order.
ROUNDING = 1e-9

TABLE_WISE, COLUMN_WISE = "ShardGym/TableWise-v0", "ShardGym/ColumnWise-v0"


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
    """Compare what `reset` or `step` returned, types of arrays included; rewards and costs to rounding."""
    assert data_equivalence(one[0], other[0], exact=True)
    for array, twin in zip(one[1:-1], other[1:-1], strict=True):
        assert array.dtype == twin.dtype
        np.testing.assert_allclose(array, twin, rtol=ROUNDING)
    assert_same_infos(one[-1], other[-1])


def assert_same_infos(one, other):
    assert one.keys() == other.keys()
    for name, said in one.items():
        if isinstance(said, dict):
            assert_same_infos(said, other[name])
        elif name == "cost":
            assert list(map(type, said)) == list(map(type, other[name]))
            for cost, twin in ((c, t) for c, t in zip(said, other[name], strict=True) if c is not None):
                np.testing.assert_allclose(cost.per_device, twin.per_device, rtol=ROUNDING)
                assert dataclasses.replace(cost, per_device=twin.per_device) == twin
        else:
            assert data_equivalence(said, other[name], exact=True), (name, said, other[name])


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
