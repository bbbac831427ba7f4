"""A solver is handed the oracle: nothing of the judge can be reached from there."""

from __future__ import annotations

import gc
import types

import numpy as np
import pytest

from shardgym import ShardingPlan


def reachable(root: object) -> list[object]:
    """Everything that an object refers to, directly or not; not through modules, classes and functions' globals."""
    seen, stack, found = set(), [root], []
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, types.ModuleType | type | types.FunctionType | types.CodeType):
            continue
        seen.add(id(thing))
        found.append(thing)
        stack.extend(gc.get_referents(thing))
    return found


def arrays(root: object) -> list[np.ndarray]:
    return [thing for thing in reachable(root) if isinstance(thing, np.ndarray)]


@pytest.fixture
def used_oracle(oracle, judge, task, plans):
    """An oracle that was used in every way, while a judge of the same folder was used too."""
    judge.evaluate(task, plans)
    oracle.evaluate(task, plans)
    oracle.familiarity(task, plans)
    return oracle


def test_the_walk_finds_the_oracles_own_weights(used_oracle):
    found = {array.tobytes() for array in arrays(used_oracle)}
    assert used_oracle._weights.networks["compute"]["head.0.weight"].tobytes() in found


def test_no_public_call_of_the_oracle_returns_or_holds_anything_of_the_judge(used_oracle, judge, task, plans):
    """Every public attribute is read, and called where it can be with what a solver has."""
    secrets = {a.tobytes() for params in judge._weights.networks.values() for a in params.values() if a.size > 4}
    given = {"evaluate": (task, plans), "familiarity": (task, plans), "begin": (task,), "no_cost": (task, "why")}
    results: list[object] = [used_oracle]
    called = set()
    for name in (n for n in dir(used_oracle) if not n.startswith("_")):
        value = getattr(used_oracle, name)
        results.append(value)
        if callable(value):
            results.append(value(*given.get(name, ())))
            called.add(name)
    assert set(given) | {"settings", "close"} <= called
    for result in results:
        texts = [thing for thing in reachable(result) if isinstance(thing, str)]
        assert judge.version not in texts
        assert judge._weights.digest not in texts
        assert not {array.tobytes() for array in arrays(result)} & secrets
        assert not any(thing is judge or thing is judge._weights for thing in reachable(result))


def test_the_oracles_settings_make_an_oracle(used_oracle):
    assert used_oracle.settings().get("role", "oracle") == "oracle"
    assert used_oracle.role == "oracle"


def test_weights_of_the_judge_do_not_load_as_an_oracle(model):
    from shardgym import InputError, make_cost

    with pytest.raises(InputError, match="role: these weights are of 'judge', expected 'oracle'"):
        make_cost("simulator", weights=model / "judge.safetensors")


def test_oracle_and_judge_disagree_about_some_pair_of_plans(oracle, judge, task):
    """Two architectures on disjoint samples: not the same function in disguise."""
    rng = np.random.default_rng(4)
    plans = [ShardingPlan.table_wise(task, rng.integers(0, 3, 12).tolist()) for _ in range(60)]
    ours, theirs = ([c.total_ms for c in cost.evaluate(task, plans)] for cost in (oracle, judge))
    assert np.argsort(ours).tolist() != np.argsort(theirs).tolist()
    assert np.corrcoef(ours, theirs)[0, 1] > 0.8
