"""Planners of the benchmark at scale run in processes of their own, up to a cap."""

import functools
import itertools

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

pytestmark = pytest.mark.torchrec


def test_what_takes_longer_than_the_cap_says_so(tool):
    assert tool.in_process(functools.partial(sum, itertools.count()), 1) == {"stopped": "over 1 s"}


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
def test_planners_plan_alone(tool):
    task = tool.drawn(12, 2)
    for plan in (tool.by_torchrec, tool.by_shardgym):
        found = tool.in_process(functools.partial(tool.measured, plan, task), 300)
        assert found["rating ms"] > 0
        assert found["cpu s"] > 0
