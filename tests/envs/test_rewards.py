"""Dense and relative rewards: what a step adds to the cost of what is placed, and returns over a simple rule's cost."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from env_toys import TABLE_WISE, halvable_task, make_tasks, masked_rollout, native, play, returns, with_reuse
from sums import WholePlans

import shardgym
from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology
from shardgym.costs.roofline import RooflineCost
from shardgym.envs import ENV_IDS
from shardgym.envs.env import TableWiseEnv
from shardgym.envs.reference import references_ms


def odd_task(*others):
    tables = (EmbeddingTable("odd", 100, 6), *others)
    return ShardingTask(tables, Topology(num_devices=1, memory_bytes=2**20), batch_size=64)


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_dense_and_terminal_returns_are_equal(env_id, simulator):
    cost = simulator if env_id == TABLE_WISE else "roofline"
    tasks = [with_reuse(task) for task in make_tasks()]
    terminal, dense = (
        [pair for seed in range(4)
         for pair in returns(gymnasium.make(env_id, tasks=tasks, cost=cost, reward=reward), seed, 150)]
        for reward in ("terminal", "dense")
    )  # fmt: skip
    assert [outcome for _, outcome in dense] == [outcome for _, outcome in terminal]
    assert {outcome for _, outcome in dense} == {"complete", "no_device_fits"}
    np.testing.assert_allclose([r for r, _ in dense], [r for r, _ in terminal], rtol=1e-12)


@pytest.mark.parametrize("plans", [True, False])
def test_an_infeasible_width_costs_the_penalty_in_all(plans):
    env = TableWiseEnv(tasks=[odd_task(EmbeddingTable("even", 10, 8))], reward="dense", plans=plans)
    steps = play(env, [0, 0])
    _, _, terminated, _, info = steps[-1]
    assert (sum(step[1] for step in steps), terminated, info["outcome"]) == (-1000.0, True, "no_cost")
    assert "widths divisible by 4" in info["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"reward": "dense"}, "reward='dense' needs a cost"), ({"observation": "timed"}, "observation='timed' needs a")],
)
def test_a_cost_of_whole_plans_has_neither_dense_rewards_nor_times(arguments, message):
    with pytest.raises(InputError, match=rf"{message} .*, such as 'simulator' .*scores whole plans only"):
        TableWiseEnv(tasks=make_tasks(), cost=WholePlans(), **arguments)


@pytest.mark.parametrize("env_id", ENV_IDS)
@pytest.mark.parametrize("cost", ["roofline", "whole plans"])
def test_relative_rewards_are_those_in_ms_over_the_reference(env_id, cost):
    """Dense ones; terminal ones, and references of roofline, where the cost is not additive."""
    model, reward = (WholePlans(), "terminal") if cost == "whole plans" else (cost, "dense")
    in_ms = gymnasium.make(env_id, tasks=make_tasks(), cost=model, reward=reward)
    relative = gymnasium.make(env_id, tasks=make_tasks(), cost=model, reward="relative", penalty=-1000)
    ratios = []
    for (_, ms, *_), (_, earned, *_, info) in zip(masked_rollout(in_ms, 0), masked_rollout(relative, 0), strict=True):
        if info.get("outcome", "complete") == "complete":
            assert earned == pytest.approx(ms / info["reference_ms"])
        assert ("ratio" in info) == ("outcome" in info)
        if "ratio" in info:
            ratios.append(info["ratio"])
            assert info["ratio"] == info["cost_ms"] / info["reference_ms"]
    assert np.isfinite(ratios).any()


@pytest.mark.parametrize("arguments", [{}, {"penalty": -1.5}])
def test_the_penalty_of_relative_rewards_is_in_reference_costs(arguments):
    """It also bounds what complete plans earn, and goes with the task of each environment."""
    penalty = arguments.get("penalty", -5.0)
    settings = {"tasks": make_tasks(), "reward": "relative"} | arguments
    ended = set()
    for earned, outcome in returns(gymnasium.make(TABLE_WISE, **settings), 0, 150):
        assert earned == pytest.approx(penalty) or (outcome == "complete" and penalty < earned < 0)
        ended.add(outcome)
    assert ended == {"complete", "no_device_fits"}
    envs = native(TABLE_WISE, **settings)
    envs.reset(options={"task_index": [0, 1, 2]})
    _, rewards, terminated, _, _ = envs.step([9, 9, 9])
    assert terminated.all()
    np.testing.assert_allclose(rewards, penalty)


def test_the_reference_is_the_longest_first_with_room_for_everything():
    """Alone, t2 takes longest, then t1: t0 joins the shorter one of these two, though its memory is full."""
    task = halvable_task([8, 16, 8], devices=2, memory_bytes=4096)
    _, info = TableWiseEnv(tasks=[task], reward="relative").reset(seed=0)
    roomy = halvable_task([8, 16, 8], devices=2)
    [cost] = RooflineCost().evaluate(roomy, [ShardingPlan.table_wise(roomy, [1, 1, 0])])
    assert info["reference_ms"] == pytest.approx(cost.total_ms)


@pytest.mark.parametrize("name", ["roofline", "simulator"])
def test_the_reference_is_that_of_lpt_where_memory_is_no_limit(name):
    """`lpt` also breaks ties by bytes, and joins halves that meet on a device."""
    cost, lpt = shardgym.make_cost(name), shardgym.make_solver("lpt")
    tasks = [dataclasses.replace(task, topology=task.topology.roomy()) for task in shardgym.load_suite("quick-v2")]
    costs = cost.additive()
    costs.share_shards()
    found = references_ms(costs, tasks)
    theirs = np.array([cost.evaluate(task, [lpt.solve(task, cost)])[0].total_ms for task in tasks])
    assert (np.abs(found / theirs - 1) < 1e-6).sum() >= 7
    np.testing.assert_allclose(found, theirs, rtol=0.1)
    # One by one or together makes no difference.
    np.testing.assert_allclose(found, [references_ms(costs, [task])[0] for task in tasks], rtol=1e-9)


def test_a_task_without_times_has_no_reference():
    with pytest.raises(InputError, match=r"no reference cost: table 'odd' has 6 columns, .*widths divisible by 4"):
        TableWiseEnv(tasks=[odd_task()], reward="relative").reset()


@pytest.mark.measured
def test_the_reward_may_be_measured():
    task = halvable_task([8, 8])
    # A loaded machine measures what it likes: no cost is to be as low as the penalty.
    env = TableWiseEnv(tasks=[task], cost="fbgemm", cost_settings={"device": "cpu"}, reward="relative", penalty=-1e9)
    try:
        *_, (_, reward, terminated, _, info) = play(env, [0, 1])
    finally:
        env.close()
    assert (terminated, info["outcome"]) == (True, "complete"), info["reason"]
    assert info["cost"].compute == "measured"
    assert reward == -info["cost"].total_ms / info["reference_ms"] < 0
