"""Tracks: which judge and which oracle a suite is scored with."""

from __future__ import annotations

import json

import pytest

from shardgym import EmbeddingTable, InputError, ShardingTask, Topology, load_suite
from shardgym.suites.spec import SIMULATED, CostChoice, Track

TASK = ShardingTask((EmbeddingTable("a", 100, 8),), Topology(num_devices=2, memory_bytes=2**20), batch_size=64)


@pytest.fixture
def suite_of(tmp_path):
    """Load a suite file with the given fields."""

    def load(**fields):
        path = tmp_path / "own.json"
        content = {"description": "one task", "judge": "fbgemm", "oracle": "roofline"} | fields
        path.write_text(json.dumps(content | {"tasks": {"kind": "listed", "tasks": [TASK.to_dict()]}}))
        return load_suite(path)

    return load


def test_the_default_track_is_that_of_judge_and_oracle(suite_of):
    suite = suite_of(oracle={"cost": "simulator", "settings": {"weights": "mine"}})
    track = Track(CostChoice("fbgemm"), CostChoice("simulator", {"weights": "mine"}))
    assert suite.track() == suite.track("fbgemm") == track
    assert (suite.judge, suite.oracle) == ("fbgemm", "simulator")


def test_the_simulated_track_is_the_one_that_the_file_names(suite_of):
    judge = {"cost": "simulator", "settings": {"role": "judge", "hardware": "lab"}}
    suite = suite_of(simulated={"judge": judge, "oracle": {"cost": "roofline"}})
    assert suite.track("simulator") == Track(CostChoice(**judge), CostChoice("roofline"))


def test_without_a_simulated_track_the_simulators_own_judge_scores(suite_of):
    assert suite_of().track("simulator") == SIMULATED
    assert SIMULATED.judge.settings == {"role": "judge"}
    assert "role" not in SIMULATED.oracle.settings


def test_another_judge_goes_with_the_default_oracle(suite_of):
    assert suite_of(oracle="simulator").track("roofline") == Track(CostChoice("roofline"), CostChoice("simulator"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"judge": {"cost": "simulator", "role": "judge"}}, "role"),
        ({"judge": 3}, "judge"),
        ({"simulated": {"judge": {"cost": "simulator"}}}, "oracle"),
    ],
)
def test_a_wrong_track_gets_one_line_that_names_the_field(suite_of, fields, message):
    with pytest.raises(InputError, match=message) as caught:
        suite_of(**fields)
    assert "\n" not in str(caught.value)
    assert "own.json" in str(caught.value)
