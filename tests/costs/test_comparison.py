"""Two plans by one cost: whether their difference is above the error that the cost has for such plans."""

import dataclasses
import math

import numpy as np
import pytest

from shardgym import EmbeddingTable, PlanCost, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs import comparison as module
from shardgym.costs.base import cost_names
from shardgym.costs.comparison import DifferenceError, DifferenceErrors, compare, error_of
from shardgym.costs.plan_cost import infinite

TASK = ShardingTask((EmbeddingTable("a", 80, 16), EmbeddingTable("b", 8, 4)), Topology(2, 2**20), batch_size=64)
ON_GPUS = dataclasses.replace(TASK, topology=Topology(2, 2**20, device="a100"))
WHOLE = ShardingPlan.table_wise(TASK, [0, 1])
A, B = TASK.tables
CUT = ShardingPlan.of(TASK, [*(Shard("a", (0, 80), (8 * n, 8 * n + 8), n) for n in range(2)), Shard.whole(B, 1)])
ROWS = ShardingPlan.of(TASK, [*(Shard("a", (40 * n, 40 * n + 40), (0, 16), n) for n in range(2)), Shard.whole(B, 1)])
COPIES = ShardingPlan.of(TASK, [Shard.whole(A, 0, 1), Shard.whole(B, 1)])

KNOWN = DifferenceErrors((
    DifferenceError("toy", "1", "cpu", "columns", math.log(1.05), 40, 0.9, 0.5, "toy steps"),
    DifferenceError("toy", "1", "cpu", "rows", math.log(1.2), 10, 1.0, None, "toy steps"),
))  # fmt: skip


@pytest.fixture(autouse=True)
def known_errors(tmp_path, monkeypatch):
    (tmp_path / "errors.json").write_text(KNOWN.to_json())
    monkeypatch.setattr(module, "ERRORS", tmp_path / "errors.json")
    module._errors.cache_clear()
    yield
    module._errors.cache_clear()


def cost(ms, noise=0.0, **fields):
    per_device = np.array([[0.0, ms, 0.0, 0.0, 0.0], [0.0] * 5])
    return PlanCost(per_device, **{"cost": "toy", "version": "1", "hardware": "toy", "noise": noise} | fields)


@pytest.mark.parametrize(
    ("first", "second", "verdict", "size", "right"),
    [
        (100, 94, "above", "6.4%", "farther apart, 90%"),
        (94, 100, "above", "6.4%", "farther apart, 90%"),
        (96, 100, "within", "4.2%", "closer, 50%"),
    ],
)
def test_a_difference_is_above_the_error_or_within(first, second, verdict, size, right):
    found = compare(TASK, (WHOLE, CUT), (cost(first), cost(second)))
    assert found.verdict == verdict
    assert found.sentence() == (
        f"The dearer plan costs {size} more, which is {verdict} the error of 'toy' for such plans, a median of 5.0% "
        f"over 40 pairs (toy steps); of pairs predicted {right} were in that order."
    )
    assert found.change == pytest.approx(second / first - 1)
    assert found.to_dict()["limit"] == pytest.approx(0.05)


@pytest.mark.parametrize("plan", [ROWS, COPIES])
@pytest.mark.parametrize("order", [1, -1])
def test_plans_with_rows_or_copies_have_an_error_of_their_own(plan, order):
    found = compare(TASK, (WHOLE, plan)[::order], (cost(100), cost(90)))
    assert (found.verdict, found.error.cuts) == ("within", "rows")
    assert found.sentence().endswith("for such plans, a median of 20.0% over 10 pairs (toy steps).")


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (TASK, {"version": "2"}),
        (TASK, {"cost": "other"}),
        (ON_GPUS, {}),
        (TASK, {"compute": "measured", "hardware": "nvidia-h100"}),
        (TASK, {"hardware": "roofline-h100"}),
    ],
)
def test_what_was_not_measured_is_not_known(task, changes):
    plans = tuple(dataclasses.replace(plan, task_hash=task.digest) for plan in (WHOLE, CUT))
    found = compare(task, plans, (cost(100, **changes), cost(10, **changes)))
    assert (found.verdict, found.limit, found.error) == ("unknown", None, None)
    name = changes.get("cost", "toy")
    assert found.sentence().endswith(f"which cannot be judged: the error of '{name}' for such plans is not known.")
    assert found.to_dict() == {"change": pytest.approx(-0.9), "verdict": "unknown", "limit": None, "error": None}


def test_noise_of_measurements_counts_where_it_is_larger():
    found = compare(TASK, (WHOLE, CUT), (cost(100, 0.05), cost(90, 0.05)))
    assert found.verdict == "within"
    assert found.sentence().endswith(" 11.1% more, which is within 2 standard errors of the two measurements.")
    assert compare(TASK, (WHOLE, CUT), (cost(100, 0.01), cost(90, 0.01))).verdict == "above"


def test_without_two_costs_there_is_nothing_to_compare():
    none = dataclasses.replace(cost(1), per_device=infinite(2), reason="because")
    assert compare(TASK, (WHOLE, CUT), (cost(1), none)) is None
    assert compare(TASK, (WHOLE, CUT), (cost(0), cost(1))) is None


def test_registered_costs_were_held_against_something(monkeypatch):
    """A new version has no error before `tools/difference_errors.py --write`."""
    monkeypatch.undo()
    module._errors.cache_clear()
    unknown = set()
    for name in cost_names():
        model = make_cost(name)
        devices = "gpu" if name == "gpu" else "cpu"
        # Nobody has measured plans whose rows are in tiers.
        for cuts in ("columns",) if name == "replay" else ("columns", "rows"):
            if error_of(name, model.version, devices, cuts) is None:
                unknown.add((name, cuts))
    assert not unknown
