"""Golden rollouts: what seeded play of the environments gave when it was recorded.

    python tests/envs/golden_rollouts.py        # records them anew: only when a rule is meant to change

Costs are stored as numbers and may differ by rounding. Observations, masks, drawn tasks and infos are stored as
digests and must agree exactly.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
from env_toys import awkward_tasks, halvable_task, make_tasks

import shardgym
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.roofline import RooflineCost
from shardgym.errors import MeasurementError

GOLDEN = Path(__file__).parent / "golden" / "rollouts.json"
TABLE_WISE, COLUMN_WISE = "ShardGym/TableWise-v0", "ShardGym/ColumnWise-v0"

#: Positions of the tasks that are played of every suite: few, of different sizes.
PLAYED = {
    "tiny-v1": (0, 7, 11), "quick-v1": (0, 5), "dlrm4-v1": (3, 300), "dlrm8-v1": (100,), "dlrm4-gpu-v1": (3,),
    "dlrm8-gpu-v1": (100,), "published-v1": (2, 7, 16),
}  # fmt: skip
#: How single environments are played, in turn: like a greedy heuristic, at random, and at random with invalid actions.
PLAY = ("greedy", "valid", "any")


#: Starts of the notes of costs that came after the recording.
LATER_NOTES = ("roofline was held against", f"{UNFAMILIAR}: devices of", f"{UNFAMILIAR}: links of")
#: Entries of infos that came after the recording, and say what other entries say.
LATER = {"is_success", "_is_success", "cost_ms", "_cost_ms"}


class Failing(RooflineCost):
    """Has no time for plans that leave device 0 empty, and no worker for tasks of five tables."""

    def score(self, task, plans):
        if task.num_tables == 5:
            raise MeasurementError("no worker could be started")
        costs = super().score(task, plans)
        return [c if p.on(0) else self.no_cost(task, "worker died") for c, p in zip(costs, plans, strict=True)]


class Case(NamedTuple):
    """Environments of one kind, and how long they are played."""

    name: str
    env_id: str
    settings: dict
    tasks: str
    num_envs: int = 0
    steps: int = 0


def cases():
    """Yield everything that is played."""
    for env_id in (TABLE_WISE, COLUMN_WISE):
        kind = env_id.split("/")[1][:5].lower()
        for number, suite in enumerate(PLAYED):
            for cost in ("roofline", "simulator"):
                reward = ("terminal", "dense")[(number + (cost == "simulator")) % 2]
                observation, order = ("compact", "full")[number % 2], ("size", "lookup", "dim", "task")[number % 4]
                settings = {"cost": cost, "reward": reward, "observation": observation, "order": order}
                yield Case(f"{kind}/{suite}/{cost}/{reward}/{observation}", env_id, settings, suite)
        for cost, reward in (("simulator", "dense"), ("simulator", "terminal"), ("roofline", "dense")):
            settings = {"cost": cost, "reward": reward, "observation": "full", "penalty": -50.0}
            yield Case(f"{kind}/tiny-v1/{cost}/{reward}/more", env_id, settings, "tiny-v1")
        limits = ({},) if env_id == TABLE_WISE else ({}, {"max_splits": 0}, {"max_splits": 6, "max_table_splits": 1})
        for tasks in ("toys", "awkward", "failing"):
            for reward in ("terminal", "dense"):
                for limit in limits:
                    name = f"{kind}/{tasks}/{reward}/{'-'.join(map(str, limit.values()))}"
                    yield Case(name, env_id, {"reward": reward, "observation": "full"} | limit, tasks)
        for mode in ("NextStep", "SameStep"):
            for tasks, cost, reward, num_envs, steps in (
                ("toys", "roofline", "terminal", 4, 60), ("awkward", "roofline", "dense", 3, 40),
                ("failing", "roofline", "terminal", 3, 60), ("tiny-v1", "simulator", "terminal", 5, 40),
                ("tiny-v1", "simulator", "dense", 5, 40), ("toys", "roofline", "dense", 1, 30),
                ("pool", "roofline", "terminal", 2, 70),
            ):  # fmt: skip
                observation = "full" if mode == "SameStep" else "compact"
                settings = {"reward": reward, "cost": cost, "observation": observation, "autoreset_mode": mode}
                settings |= {"max_splits": 2} if env_id == COLUMN_WISE and tasks != "tiny-v1" else {}
                name = f"{kind}/{num_envs}/{tasks}/{cost}/{reward}/{mode}"
                yield Case(name, env_id, settings, tasks, num_envs, steps)


def make(case):
    """Make the environment of a case: a single one, or a native vector environment."""
    settings = dict(case.settings)
    if case.tasks == "pool":
        settings |= {"suite": "quick-v1", "pool": "synthetic-2021", "pool_tasks": 98_304}
    elif case.tasks in PLAYED:
        suite = shardgym.load_suite(case.tasks)
        settings["tasks"] = [suite[n] for n in PLAYED[case.tasks]]
    else:
        settings["tasks"] = {"toys": make_tasks, "awkward": awkward_tasks, "failing": failing_tasks}[case.tasks]()
        settings |= {"cost": Failing()} if case.tasks == "failing" else {}
    if case.num_envs:
        kind = {"num_envs": case.num_envs, "vectorization_mode": "vector_entry_point"}
        return gymnasium.make_vec(case.env_id, **kind, **settings)
    return gymnasium.make(case.env_id, **settings)


def failing_tasks():
    """Tasks on which play ends in every way there is."""
    return [*awkward_tasks(), halvable_task([16, 8, 8]), halvable_task([32, 4, 12, 8, 8], memory_bytes=9000)]


def rollouts(case):
    """Play a case; return what is recorded of it."""
    env = make(case)
    try:
        return vector_rollout(env, case.steps) if case.num_envs else single_rollouts(env)
    finally:
        env.close()


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
            masks = env.get_wrapper_attr("action_masks")()
            assert np.array_equal(masks, observation["action_mask"].astype(bool))
            observation, reward, ended, truncated, info = env.step(choose(rng, play, observation))
            assert not truncated
            total += reward
            totals.append(total)
            add(digest, observation, info, costs)
        kept = totals if env.unwrapped.spec.kwargs["reward"] == "dense" else totals[-1:]
        rest = {"outcome": info["outcome"], "steps": len(totals), "digest": digest.hexdigest()[:24]}
        records.append({"returns": numbers(kept), "costs": numbers(costs), **rest})
    return records


def vector_rollout(envs, steps):
    """Step environments together; return one record."""
    rng, digest, costs = np.random.default_rng(2), hashlib.sha256(), []
    observations, infos = envs.reset(seed=3)
    earned, rewards = np.zeros(envs.num_envs), []
    add(digest, observations, infos, costs)
    for _ in range(steps):
        masks = observations["action_mask"]
        assert np.array_equal(envs.action_masks(), masks.astype(bool))
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
    """Choose an action."""
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
    """Digest an observation and an info; costs are collected as numbers, and only the rest of them is digested."""
    for name in sorted(observation):
        values = np.asarray(observation[name])
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    digest.update(json.dumps(plain(info, costs), sort_keys=True).encode())


def plain(value, costs):
    """Return what an info holds as JSON, and append the times of costs to `costs`."""
    if isinstance(value, dict):
        return {name: plain(value[name], costs) for name in sorted(value.keys() - LATER)}
    if isinstance(value, np.ndarray):
        return [str(value.dtype), [plain(member, costs) for member in value]]
    if isinstance(value, shardgym.ShardingPlan):
        return value.digest
    if isinstance(value, shardgym.PlanCost):
        costs += [value.total_ms, value.per_device.sum()] if value.feasible else []
        facts = value.cost, value.version, value.hardware, value.compute, value.communication, value.reason
        notes = [note for note in value.notes if not note.startswith(LATER_NOTES)]
        return [*facts, value.noise, value.repeats, value.session, *notes, *value.per_device.shape]
    if isinstance(value, np.generic):
        return [str(value.dtype), value.item()]
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def numbers(values):
    """Return floats with twelve digits."""
    return [float(f"{value:.12g}") for value in values]


def record():
    """Write everything that is played."""
    played = {case.name: rollouts(case) for case in cases()}
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in played.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n")
    steps = sum(len(found[0]["returns"]) for found in played.values())
    sys.stdout.write(f"{len(played)} cases, {steps} steps or more, {GOLDEN.stat().st_size} bytes\n")


if __name__ == "__main__":
    record()
