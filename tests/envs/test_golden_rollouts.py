"""The environments play as they did when the golden rollouts were recorded.

    python tests/envs/test_golden_rollouts.py        # records them anew: only when a rule is meant to change

Costs are numbers, which may differ by rounding. Observations, masks, tasks and infos are digests.
"""

import hashlib
import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from env_toys import ROUNDING, Failing, awkward_tasks, failing_tasks, make_tasks, native

import shardgym

GOLDEN = Path(__file__).parent / "golden" / "rollouts.json"

#: Positions of the tasks that are played of every suite: few, of different sizes.
PLAYED = {"tiny-v1": (0, 7, 11), "quick-v2": (0, 5), "published-v1": (2, 7)}
#: How single environments are played, in turn: like a greedy heuristic, at random, and at random with invalid actions.
PLAY = ("greedy", "valid", "any")
#: Tasks, cost, reward, observation; and where there are several environments their number and autoreset mode.
KINDS = (
    "tiny-v1/simulator/dense/full", "quick-v2/roofline/terminal/compact", "published-v1/roofline/dense/compact",
    "awkward/roofline/dense/full", "failing/roofline/terminal/full", "toys/roofline/terminal/compact/4/NextStep",
    "awkward/roofline/dense/full/3/SameStep", "failing/roofline/terminal/full/3/SameStep",
    "tiny-v1/simulator/dense/full/5/NextStep", "pool/roofline/terminal/compact/2/NextStep",
)  # fmt: skip
CASES = [f"{env_id}/{kind}" for env_id in ("TableWise", "ColumnWise", "AnyWise") for kind in KINDS]


def rollouts(case):
    """Play a case; return what is recorded of it."""
    kind, tasks, cost, reward, observation, *many = case.split("/")
    settings = {"cost": cost, "reward": reward, "observation": observation, "penalty": -500.0}
    settings["order"] = "lookup" if tasks == "quick-v2" else "size"
    if tasks == "pool":
        settings |= {"suite": "quick-v2", "pool": "synthetic-2021", "pool_tasks": 32_768}
    elif tasks in PLAYED:
        settings["tasks"] = [shardgym.load_suite(tasks)[n] for n in PLAYED[tasks]]
    else:
        settings["tasks"] = {"toys": make_tasks, "awkward": awkward_tasks, "failing": failing_tasks}[tasks]()
        settings |= {"cost": Failing()} if tasks == "failing" else {}
    env_id = f"ShardGym/{kind}-v0"
    if not many:
        return single_rollouts(gymnasium.make(env_id, **settings))
    settings |= {} if kind == "TableWise" else {"max_splits": 2}
    return vector_rollout(native(env_id, int(many[0]), autoreset_mode=many[1], **settings))


def single_rollouts(env):
    """Play every task in every way, and two that are drawn; return a record for each episode."""
    tasks = len(env.unwrapped.spec.kwargs["tasks"])
    episodes = [(play, {"task_index": n}) for n in range(tasks) for play in PLAY] + [("valid", None)] * 2
    rng, records = np.random.default_rng(1), []
    for number, (play, options) in enumerate(episodes):
        digest = hashlib.sha256()
        observation, info = env.reset(seed=number, options=options)
        total, totals, costs = 0.0, [], []
        add(digest, observation, info, costs)
        ended = False
        while not ended:
            observation, reward, ended, _, info = env.step(choose(rng, play, observation))
            total += reward
            totals.append(total)
            add(digest, observation, info, costs)
        kept = totals if env.unwrapped.spec.kwargs["reward"] == "dense" else totals[-1:]
        rest = {"outcome": info["outcome"], "steps": len(totals), "digest": digest.hexdigest()[:24]}
        records.append({"returns": numbers(kept), "costs": numbers(costs), **rest})
    return records


def vector_rollout(envs, steps=50):
    """Step environments together; return one record."""
    rng, digest, costs = np.random.default_rng(2), hashlib.sha256(), []
    observations, infos = envs.reset(seed=3)
    earned, rewards = np.zeros(envs.num_envs), []
    add(digest, observations, infos, costs)
    for _ in range(steps):
        rows = [{name: values[row] for name, values in observations.items()} for row in range(envs.num_envs)]
        actions = [choose(rng, PLAY[row % 3], seen) for row, seen in enumerate(rows)]
        observations, reward, terminated, truncated, infos = envs.step(actions)
        # What has been earned so far, not single rewards: these are differences, which rounding may move by more.
        earned += reward
        rewards += earned[np.abs(reward) > 1e-6].tolist()
        digest.update(terminated.tobytes() + truncated.tobytes())
        add(digest, observations, infos, costs)
    return [{"returns": numbers(rewards), "costs": numbers(costs), "digest": digest.hexdigest()[:24]}]


def choose(rng, play, observation):
    valid = np.flatnonzero(observation["action_mask"])
    if play == "any" and rng.random() < 0.06:
        return int(rng.integers(-1, len(observation["action_mask"]) + 2))
    if not len(valid):
        return 0
    devices = observation["devices"].reshape(-1, 7)
    on_device = valid[valid < len(devices)]
    if play == "greedy" and len(on_device) and rng.random() < 0.9:
        return int(on_device[devices[on_device, 5].argmin()])
    return int(rng.choice(valid))


def add(digest, observation, info, costs):
    """Digest an observation and an info; times are collected in `costs`, and only the rest is digested."""
    for name in sorted(observation):
        values = np.asarray(observation[name])
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    digest.update(json.dumps(plain(info, costs), sort_keys=True).encode())


def plain(value, costs):
    """Return what an info holds as JSON, without sentences, and append the times of costs to `costs`."""
    if isinstance(value, dict):
        left_out = {"reason", "_reason", "cost_ms", "_cost_ms"}
        return {name: plain(value[name], costs) for name in sorted(value.keys() - left_out)}
    if isinstance(value, np.ndarray):
        return [str(value.dtype), [plain(member, costs) for member in value]]
    if isinstance(value, shardgym.ShardingPlan):
        return value.digest
    if isinstance(value, shardgym.PlanCost):
        costs += [value.total_ms, value.per_device.sum()] if value.feasible else []
        return [value.cost, value.feasible]
    return value.item() if isinstance(value, np.generic) else value


def numbers(values):
    """Return floats with twelve digits."""
    return [float(f"{value:.12g}") for value in values]


@pytest.mark.parametrize("name", CASES)
def test_play_is_as_it_was_recorded(name):
    played, recorded = rollouts(name), json.loads(GOLDEN.read_text())[name]
    for seen, expected in zip(played, recorded, strict=True):
        for figures in ("returns", "costs"):
            np.testing.assert_allclose(seen.pop(figures), expected.pop(figures), rtol=ROUNDING)
        assert seen == expected


if __name__ == "__main__":
    played = {name: rollouts(name) for name in CASES}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in played.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n")
    sys.stdout.write(f"{len(played)} cases, {GOLDEN.stat().st_size} bytes\n")
