"""Suite: a lazy sequence that checks what it builds, with the tracks that score it."""

import dataclasses
import json

import pytest

from shardgym import EmbeddingTable, InputError, ShardingTask, Suite, Topology, load_suite
from shardgym.tasks.suites.spec import SIMULATED, CostChoice, Track

TASK = ShardingTask((EmbeddingTable("a", 100, 8),), Topology(num_devices=2, memory_bytes=2**20), batch_size=64)


class ToySource:
    """Three copies of a task, counting how often one is built."""

    def __init__(self, task):
        self.task, self.built = task, []

    def __len__(self):
        return 3

    def group(self, index):
        return "even" if index % 2 == 0 else "odd"

    def build(self, index, name):
        self.built.append(index)
        return dataclasses.replace(self.task, name=name)


@pytest.fixture
def source(toy_task):
    return ToySource(toy_task)


def suite_of(source, digests=None):
    return Suite("toy", "", (Track(CostChoice("fbgemm"), CostChoice("roofline")),), source, digests)


def test_indices_and_slices_work_as_in_a_list_of_tasks_that_are_built_once(source):
    suite = suite_of(source)
    assert (len(suite), source.built) == (3, [])
    assert suite[1] is suite[1]
    assert source.built == [1]
    assert (suite.groups, suite.group(1), suite.group(-1)) == (["even", "odd"], "odd", "even")
    assert suite[-1].name == "toy/2"
    assert [task.name for task in suite[1:]] == ["toy/1", "toy/2"]
    assert [task.name for task in suite] == ["toy/0", "toy/1", "toy/2"]
    with pytest.raises(IndexError):
        suite[3]


def test_a_task_that_was_changed_is_refused(source, toy_task):
    suite = suite_of(source, (toy_task.digest, "0" * 64, toy_task.digest))
    assert suite[0].digest == toy_task.digest
    with pytest.raises(InputError, match=r"task 1 of suite 'toy' is \w{12}, published was 000000000000"):
        suite[1]
    with pytest.raises(InputError, match="3 tasks and 2 digests"):
        suite_of(source, (toy_task.digest,) * 2)


@pytest.fixture
def suite_file(tmp_path):
    """Load a suite file with the given fields."""

    def load(**fields):
        path = tmp_path / "own.json"
        content = {"description": "one task", "judge": "fbgemm", "oracle": "roofline"} | fields
        path.write_text(json.dumps(content | {"tasks": {"kind": "listed", "tasks": [TASK.to_dict()]}}))
        return load_suite(path)

    return load


def test_the_default_track_is_that_of_judge_and_oracle(suite_file):
    suite = suite_file(oracle={"cost": "simulator", "settings": {"weights": "mine"}})
    track = Track(CostChoice("fbgemm"), CostChoice("simulator", {"weights": "mine"}))
    assert suite.track() == suite.track("fbgemm") == track
    assert (suite.judge, suite.oracle) == ("fbgemm", "simulator")
    assert suite.track("simulator") == SIMULATED
    with pytest.raises(InputError, match=r"own\.json: .*role"):
        suite_file(judge={"cost": "simulator", "role": "judge"})
