"""Small tasks and ways to play them, shared by the tests of environments."""

import copy
import dataclasses
from collections import Counter

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from shardgym import EmbeddingTable, MeasurementError, ShardingTask, Topology
from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS

TABLE_WISE, COLUMN_WISE, ANY_WISE = ENV_IDS

#: Relative difference of times that is taken for rounding: how many plans are predicted together may change last bits.
ROUNDING = 1e-9


def make_tasks():
    """Tasks with 1 to 4 devices. Memory binds in the second and third; in the second, play can reach a dead end."""

    def task(name, units, memory_units):
        tables = tuple(EmbeddingTable(f"t{i}", 100 * size, 8, 1.0 + i) for i, size in enumerate(units))
        memory = tuple(3200 * size for size in memory_units)
        return ShardingTask(tables, Topology(num_devices=len(memory), memory_bytes=memory), batch_size=64, name=name)

    return [
        task("roomy", [5, 4, 3, 2, 1, 1], [100] * 4), task("tight", [3, 3, 2, 2, 2], [6, 6]),
        task("uneven", [4, 3, 2, 1, 1], [6, 4, 1]), task("single", [1, 2], [3]),
    ]  # fmt: skip


def halvable_task(widths, devices=2, memory_bytes=2**20, rows=64, **options):
    tables = tuple(EmbeddingTable(f"t{i}", rows, width, 1.0 + i) for i, width in enumerate(widths))
    return ShardingTask(tables, Topology(num_devices=devices, memory_bytes=memory_bytes), batch_size=64, **options)


def with_reuse(task):
    """The task with reuse histograms, which the simulator reads."""
    histogram = (0.5, 0.5, *[0.0] * 15)
    tables = tuple(dataclasses.replace(table, reuse_histogram=histogram) for table in task.tables)
    return dataclasses.replace(task, tables=tables)


def masked_rollout(env, seed, steps=40):
    """Yield what every reset and step returned, choosing among unmasked actions."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for _ in range(steps):
        action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
        observation, reward, terminated, truncated, info = env.step(action)
        yield observation, reward, terminated, truncated, info
        if terminated:
            observation, info = env.reset()
            yield observation, 0.0, False, False, info


def returns(env, seed, steps=200):
    """Return the sum of rewards and the outcome of every finished episode of masked play."""
    finished, earned = [], 0.0
    for _, reward, terminated, _, info in masked_rollout(env, seed, steps):
        earned += reward
        if terminated:
            finished.append((earned, info["outcome"]))
            earned = 0.0
    return finished


def play(env: gymnasium.Env, actions, **reset):
    env.reset(**reset)
    return [env.step(action) for action in actions]


def plans_reached(env):
    """Digests of the plans that masked play can end with, from here on."""
    reached = set()
    for action in np.flatnonzero(env.action_masks()):
        forked = copy.deepcopy(env)
        _, _, ended, _, info = forked.step(action)
        if not ended:
            reached |= plans_reached(forked)
        elif info["outcome"] == "complete":
            reached.add(info["plan"].digest)
    return reached


def awkward_tasks():
    """Toy tasks, one with a width that no kernel takes, two whose first table fits nowhere, and some whose halves take
    more than half of the memory and whose figures do not add up exactly.
    """
    odd = ShardingTask((EmbeddingTable("odd", 10, 6),), Topology(num_devices=2, memory_bytes=2**20), batch_size=64)
    full = ShardingTask((EmbeddingTable("big", 99, 4),), Topology(num_devices=2, memory_bytes=100), batch_size=64)
    wide = ShardingTask((EmbeddingTable("wide", 99, 8),), Topology(num_devices=1, memory_bytes=2000), batch_size=64)
    uneven = []
    for task in make_tasks():
        tables = [dataclasses.replace(table, pooling_factor=table.pooling_factor / 7) for table in task.tables]
        uneven.append(dataclasses.replace(task, optimizer="rowwise_adagrad", tables=tuple(tables)))
    return [*make_tasks(), odd, full, wide, *uneven]


class Failing(RooflineCost):
    """Has no time for plans that leave device 0 empty, and no worker for tasks of five tables."""

    def score(self, task, plans):
        if task.num_tables == 5:
            raise MeasurementError("no worker could be started")
        costs = super().score(task, plans)
        return [c if p.on(0) else self.no_cost(task, "worker died") for c, p in zip(costs, plans, strict=True)]


class Unmeasured(RooflineCost):
    def score(self, task, plans):
        return [self.no_cost(task, "worker died") for _ in plans]


def failing_tasks():
    """Tasks on which play ends in every way there is."""
    return [*awkward_tasks(), halvable_task([16, 8, 8]), halvable_task([32, 4, 12, 8, 8], memory_bytes=9000)]


def random_task(rng, tables, devices, **options):
    """Tables of widths 4 to 32 with reuse histograms."""

    def table(number):
        histogram = np.zeros(17)
        histogram[:4] = rng.dirichlet(np.ones(4))
        return EmbeddingTable(
            f"t{number}", int(rng.integers(50, 5000)), int(rng.choice([4, 8, 16, 32])), float(rng.integers(1, 20)),
            reuse_histogram=tuple(histogram.tolist()),
        )  # fmt: skip

    options = {"memory_bytes": 2**30} | options
    return ShardingTask(tuple(map(table, range(tables))), Topology(num_devices=devices, **options), batch_size=64)


def native(env_id, num_envs=3, **settings):
    return gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **settings)


def wrapped(env_id, num_envs=3, autoreset_mode="NextStep", **settings):
    options = {"autoreset_mode": autoreset_mode}
    return gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync", vector_kwargs=options, **settings)


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
                assert (cost is None) == (twin is None)
                if cost is not None:
                    assert dataclasses.replace(cost, per_device=twin.per_device) == twin
                    np.testing.assert_allclose(cost.per_device, twin.per_device, rtol=ROUNDING)
        elif name in {"cost_ms", "reference_ms", "ratio"}:
            np.testing.assert_allclose(said, others[name], rtol=ROUNDING)
        else:
            assert data_equivalence(said, others[name], exact=True), (name, said, others[name])


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
