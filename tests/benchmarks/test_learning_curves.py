"""Curves over seeds: means, intervals, the unit of costs, and cards that do not belong together."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from shardgym import make_cost, make_solver
from shardgym.envs.tasks import training_tasks
from shardgym.errors import InputError

pytest.importorskip("scipy", reason="needs the extra 'data'")
pytestmark = pytest.mark.repository


@pytest.fixture
def curves(script):
    return script("learning_curves")


def card(seed, *validation_ms, steps=(0, 5, 10)):
    entries = [
        {"step": step, "validation_ms": ms, "validation_failed": 0.0}
        for step, ms in zip(steps, validation_ms, strict=True)
    ]
    return SimpleNamespace(solver="toy", seed=seed, curve=entries, minutes=1.0 + seed, oracle_queries=100)


def test_seeds_are_averaged_in_units_of_their_own(curves):
    found = curves.curve([card(0, 40, 30, 20), card(1, 8, 8, 2), card(2, 4, 3, 4)], [20.0, 2.0, 1.0])
    np.testing.assert_allclose(found["mean"], [10 / 3, 8.5 / 3, 2.0])
    deviation = np.std([2, 4, 4], ddof=1)
    assert found["half width"][0] == pytest.approx(4.302653 * deviation / np.sqrt(3))  # t with 2 degrees of freedom
    assert found["best"] == pytest.approx((1 + 1 + 3) / 3)
    assert (found["seeds"], found["minutes"]) == ([0, 1, 2], 2.0)
    line = curves.row({"solver": "toy", "suite": "s", **found})
    assert line["at 0%"].startswith("3.333 ± ")
    assert line["at 50%"].startswith("2.833 ± ")
    assert (line["steps"], line["plans priced"]) == ("10", "100")


def test_one_seed_has_no_interval(curves):
    found = curves.curve([card(0, 4, 3, 2)], [2.0])
    assert found["half width"] is None
    assert curves.row({"solver": "toy", "suite": "s", **found})["at 100%"] == "1.000"


def test_seeds_of_other_steps_are_refused(curves):
    with pytest.raises(InputError, match="seeds 0 and 1 were evaluated after different steps"):
        curves.curve([card(0, 4, 3, 2), card(1, 4, 3, 2, steps=(0, 5, 20))], [1.0, 1.0])


def test_cards_are_found_by_solver_and_suite_and_their_tasks_drawn_again(curves, tmp_path):
    cost = make_cost("roofline")
    tasks = training_tasks("tiny-v1", 10, 3)
    solver = make_solver("dreamshard", collected_tasks=2, cost_updates=1, update_tasks=1)
    solver.fit(tasks, cost, seed=3, steps=1)
    solver.save(tmp_path / "dreamshard" / "tiny-v1" / "seed-3")
    ((key, (found,)),) = curves.cards_below(tmp_path, None).items()
    assert key == ("dreamshard", "tiny-v1")
    lpt = make_solver("lpt")
    unit = curves.unit_ms(found, "tiny-v1", lpt)
    assert unit == pytest.approx(cost.evaluate(tasks[0], [lpt.solve(tasks[0], cost)])[0].total_ms)
    with pytest.raises(InputError, match="their validation tasks cannot be drawn again"):
        curves.unit_ms(dataclasses.replace(found, seed=4), "tiny-v1", lpt)
    with pytest.raises(InputError, match=r"no cards in .*: expected ppo/SUITE/seed-K"):
        curves.cards_below(tmp_path, ["ppo"])
    plotted = {"solver": "dreamshard", "suite": "tiny-v1", **curves.curve([found], [unit])}
    pytest.importorskip("matplotlib")
    curves.plot([plotted], "lpt", tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").stat().st_size > 1000
