"""A solver is handed the oracle: nothing of the judge can be reached from there."""

import gc
import types

import numpy as np
import pytest
from evaluation_toys import ToySuite

from shardgym import InputError, evaluate, make_cost
from shardgym.evaluation.conformance import check_solver
from shardgym.tasks.suites.spec import CostChoice, Track


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


def test_no_public_call_of_the_oracle_returns_or_holds_anything_of_the_judge(oracle, judge, task, plans):
    """After both were used; every public attribute is read, and called where it can be with what a solver has."""
    judge.evaluate(task, plans)
    oracle.evaluate(task, plans)
    assert any(array is oracle._weights.params["head.0.weight"] for array in arrays(oracle))  # as they would be found
    secrets = {a.tobytes() for a in judge._weights.params.values() if a.size > 4}
    costs = oracle.additive()
    given = {
        "evaluate": (task, plans),
        "score": (task, plans),
        "no_cost": (task, "why"),
        "notes": (task,),
        "plan_costs": (costs, costs.batch(task, plans)),
    }
    results: list[object] = [oracle]
    called = set()
    for name in (n for n in dir(oracle) if not n.startswith("_")):
        value = getattr(oracle, name)
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


def test_runs_and_checks_take_an_oracle_and_a_judge_for_what_they_are(model, oracle, judge, task, tmp_path):
    suite, settings = ToySuite([task]), {"weights": model, "role": "judge"}
    with pytest.raises(InputError, match="oracle 'simulator' has role 'judge'"):
        evaluate(suite, ["random"], out=tmp_path, judge=judge, oracle=make_cost("simulator", **settings))
    same = make_cost("simulator", weights=model)
    with pytest.raises(InputError, match="judge 'simulator' has the oracle's weights"):
        evaluate(suite, ["random"], out=tmp_path, judge=same, oracle=oracle)
    with pytest.raises(InputError, match="oracle 'simulator' has role 'judge', which is for scoring"):
        check_solver("random", judge)
    track = Track(CostChoice("simulator", settings), CostChoice("roofline"))
    (record,) = evaluate(suite, ["random"], out=tmp_path, track=track)
    assert record.cost == judge.evaluate(task, [record.plan])[0]
