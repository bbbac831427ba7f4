"""Suite: a lazy sequence that checks what it builds, with the tracks that score it."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import entry_points

import pytest

import shardgym.tasks.suites.suite as suite_module
from shardgym import EmbeddingTable, InputError, ShardingTask, Topology, load_suite
from shardgym.evaluation.solver import solver_names
from shardgym.tasks.suites import sources
from shardgym.tasks.suites.spec import SIMULATED, CostChoice, Track
from shardgym.tasks.suites.suite import Suite

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


def test_tasks_are_built_once_at_their_first_use(source):
    suite = suite_of(source)
    assert (len(suite), source.built) == (3, [])
    assert suite[1] is suite[1]
    assert source.built == [1]


def test_indices_and_slices_work_as_in_a_list(source):
    suite = suite_of(source)
    assert suite[-1].name == "toy/2"
    assert [task.name for task in suite[1:]] == ["toy/1", "toy/2"]
    assert [task.name for task in suite] == ["toy/0", "toy/1", "toy/2"]
    with pytest.raises(IndexError):
        suite[3]


def test_groups_are_in_the_order_of_their_first_tasks(source):
    suite = suite_of(source)
    assert suite.groups == ["even", "odd"]
    assert (suite.group(1), suite.group(-1)) == ("odd", "even")
    with pytest.raises(IndexError):
        suite.group(3)


def test_a_task_that_was_changed_is_refused(source, toy_task):
    suite = suite_of(source, (toy_task.digest, "0" * 64, toy_task.digest))
    assert suite[0].digest == toy_task.digest
    with pytest.raises(InputError, match=r"task 1 of suite 'toy' is \w{12}, published was 000000000000"):
        suite[1]


def test_a_truncated_list_of_digests_is_refused(source, toy_task):
    with pytest.raises(InputError, match="3 tasks and 2 digests"):
        suite_of(source, (toy_task.digest,) * 2)


def test_loading_a_suite_reads_no_pool(monkeypatch):
    def forbidden(name):
        raise AssertionError("a pool was loaded")

    monkeypatch.setattr(sources, "load_pool", forbidden)
    monkeypatch.setattr(suite_module, "_shipped", suite_module._shipped.__wrapped__)  # not one that has tasks already
    suite = load_suite("dlrm8-v1")
    assert (len(suite), suite.group(7)) == (600, "max_dim=8")
    with pytest.raises(AssertionError):
        suite[0]


def bomb(levels):
    """Return a suite file whose aliases stand for 10 ** levels values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(7), "stands for 12345679[0-9]+|stands for [0-9]{8} values with its aliases, expected at most 2000000"),
        (bomb(60), r"stands for 10\^12 or more values"),
        (bomb(3) + "\ntasks: *a2", "a0: Unexpected keyword argument"),
        ("a: &a\n  <<: [" + ", ".join(["&m {x: 1}", *["*m"] * 5]) + "]", "a: Unexpected keyword argument"),
        ("a: &a [*a]", "a value holds itself"),
        ("a: [", "not valid YAML"),
        ("? [1]\n: 2\n? {a: 1}\n: 3", "not valid YAML"),
        ("", "suite.yaml: "),
    ],
)
def test_a_suite_file_that_is_no_suite_is_refused_at_once(tmp_path, text, message):
    (tmp_path / "suite.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_suite(tmp_path / "suite.yaml")
    assert len(str(error.value)) < 600


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


def test_on_the_simulated_track_the_simulators_own_judge_scores(suite_file):
    assert suite_file().track("simulator") == SIMULATED
    assert SIMULATED.judge.settings == {"role": "judge"}
    assert "role" not in SIMULATED.oracle.settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"judge": {"cost": "simulator", "role": "judge"}}, "role"),
        ({"judge": 3}, "judge"),
    ],
)
def test_a_wrong_track_gets_one_line_that_names_the_field(suite_file, fields, message):
    with pytest.raises(InputError, match=message) as caught:
        suite_file(**fields)
    assert "\n" not in str(caught.value)
    assert "own.json" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["quick-v1", "tiny-v1", "dlrm4-v1", "dlrm8-v1", "dlrm4-gpu-v1", "dlrm8-gpu-v1", "wide8-v2"]
)
def test_shipped_suites_name_solvers_that_need_no_extra(name):
    """So that the command of the README runs everywhere."""
    solvers = load_suite(name).solvers
    assert {"random", "size_lookup_greedy", "neuroshard", "neuroshard_plus"} <= set(solvers) <= set(solver_names())
    assert not any(entry.extras for entry in entry_points(group="shardgym.solvers") if entry.name in solvers)
