"""How many samples are collected."""

from __future__ import annotations

import pytest

from shardgym.errors import InputError, UnknownNameError
from shardgym.training.settings import PLAN_DEVICES, PRESETS, apportion, preset_counts


def test_totals_are_divided_in_the_preset_s_proportions():
    assert apportion({"oracle": 2, "judge": 1, "test": 1}, 10) == {"oracle": 5, "judge": 3, "test": 2}
    assert preset_counts("quick", "cpu", 20, 4)["steps"] == {"oracle": 2, "judge": 1, "test": 1}
    assert preset_counts("quick", "cpu", 20, 0)["steps"] == {"oracle": 0, "judge": 0, "test": 0}
    assert sum(preset_counts("survey", "cpu", None, None)["steps"].values()) == 500


def test_there_are_no_steps_on_cuda():
    for preset in PRESETS:
        assert preset_counts(preset, "cuda", None, None)["steps"] == {}
        assert preset_counts(preset, "cuda", None, 0)["steps"] == {}
    assert preset_counts("survey", "cuda", None, None)["compute"]["plans"] == 200 * PLAN_DEVICES


def test_unknown_presets_and_negative_numbers_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean quick"):
        preset_counts("quik", "cpu", None, None)
    with pytest.raises(InputError, match="compute=-1"):
        preset_counts("quick", "cpu", -1, None)
