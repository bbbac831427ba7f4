"""The environments play as they did when the golden rollouts were recorded."""

import json

import numpy as np
import pytest
from golden_rollouts import GOLDEN, cases, rollouts

RECORDED = json.loads(GOLDEN.read_text())
CASES = {case.name: case for case in cases()}

#: Relative difference of costs and returns that is taken for rounding.
ROUNDING = 1e-9


def test_every_case_was_recorded():
    assert list(CASES) == list(RECORDED)


@pytest.mark.parametrize("name", CASES)
def test_play_is_as_it_was_recorded(name):
    played, recorded = rollouts(CASES[name]), RECORDED[name]
    assert len(played) == len(recorded)
    for seen, expected in zip(played, recorded, strict=True):
        for figures in ("returns", "costs"):
            np.testing.assert_allclose(seen.pop(figures), expected.pop(figures), rtol=ROUNDING)
        assert seen == expected
