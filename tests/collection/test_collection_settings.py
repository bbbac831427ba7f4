"""How many samples are collected."""

from __future__ import annotations

import pytest

from shardgym.collection.settings import apportion, preset_counts
from shardgym.errors import InputError, UnknownNameError


def test_totals_are_divided_in_the_preset_s_proportions():
    assert apportion({"oracle": 2, "judge": 1, "test": 1}, 10) == {"oracle": 5, "judge": 3, "test": 2}
    assert preset_counts("quick", "cpu", 20, 4)["comm"] == {"oracle": 2, "judge": 1, "test": 1}
    assert preset_counts("quick", "cpu", 20, 0)["comm"] == {"oracle": 0, "judge": 0, "test": 0}
    assert sum(preset_counts("survey", "cpu", None, None)["comm"].values()) == 3_000


def test_unknown_presets_and_negative_numbers_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean quick"):
        preset_counts("quik", "cpu", None, None)
    with pytest.raises(InputError, match="compute=-1"):
        preset_counts("quick", "cpu", -1, None)
