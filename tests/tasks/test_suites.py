"""Suites: lazy sequences that check what they build, one's own, what bad files get, and those that ship."""

import dataclasses
import functools
import json
import math

import pytest
import yaml

from shardgym import InputError, ShardingPlan, Suite, load_suite, make_cost
from shardgym.errors import UnknownNameError
from shardgym.tasks.suites import suite_names
from shardgym.tasks.suites.spec import SIMULATED, CostChoice, Track

TABLES = "name,num_embeddings,embedding_dim\n" + "".join(f"t{i},{100 + i},8\n" for i in range(20))
GROUP = {
    "name": "all", "count": 3, "topology": "cpu", "num_devices": 2, "memory_bytes": 100_000,
    "num_tables": [3, 5], "dims": [4, 8], "max_total_bytes": 100_000,
}  # fmt: skip


def spec(group=(), tasks=(), top=()):
    drawn = {"kind": "drawn", "seed": 1, "pool": "mine.csv", "batch_size": 65_536, "groups": [{**GROUP, **dict(group)}]}
    return {"description": "d", "judge": "fbgemm", "oracle": "roofline", "tasks": {**drawn, **dict(tasks)}, **dict(top)}


@pytest.fixture
def write(tmp_path):
    def write(content, name="own.yaml"):
        (tmp_path / "mine.csv").write_text(TABLES)
        path = tmp_path / name
        text = yaml.safe_dump(content) if name.endswith(".yaml") else json.dumps(content)
        path.write_text(content if isinstance(content, str) else text)
        return path

    return write


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


def test_mixed_tasks_take_pools_beside_the_file_and_count_the_state_of_their_tables(write, tmp_path):
    """Ten rows of 4 columns with the state of Adam take 480 bytes, without it 160."""
    lines = [f"t{n},10,4,adam" for n in range(6)]
    (tmp_path / "adam.csv").write_text("\n".join(["name,num_embeddings,embedding_dim,optimizer", *lines]))
    group = {"name": "all", "count": 2, "topology": "cpu", "num_devices": 2}
    tasks = {
        "kind": "mixed", "seed": 1, "pools": [{"pool": "adam.csv"}], "samples_per_device": 8, "num_tables": [3, 3],
        "total_bytes": [1440, 1440], "groups": [group],
    }  # fmt: skip
    for task in load_suite(write({"description": "d", "judge": "gpu", "oracle": "roofline", "tasks": tasks})):
        assert (task.num_tables, task.total_bytes) == (3, 1440)


def test_indices_and_slices_work_as_in_a_list_of_tasks_that_are_built_once(source):
    suite = suite_of(source)
    assert (len(suite), source.built) == (3, [])
    assert suite[1] is suite[1]
    assert source.built == [1]
    assert (suite.group(1), suite.group(-1)) == ("odd", "even")
    assert suite[-1].name == "toy/2"
    assert [task.name for task in suite[1:]] == ["toy/1", "toy/2"]
    assert [task.name for task in suite] == ["toy/0", "toy/1", "toy/2"]
    with pytest.raises(IndexError):
        suite[3]


def test_a_task_that_was_changed_is_refused(source, toy_task):
    suite = suite_of(source, (toy_task.digest, "0" * 64, toy_task.digest))
    assert suite[0].digest == toy_task.digest
    with pytest.raises(InputError, match=r"task 1 of suite 'toy' has digest \w{12}, expected 000000000000"):
        suite[1]
    with pytest.raises(InputError, match="3 tasks and 2 digests"):
        suite_of(source, (toy_task.digest,) * 2)


def test_the_default_track_is_that_of_judge_and_oracle(write):
    suite = load_suite(write(spec(top={"oracle": {"cost": "simulator", "settings": {"weights": "mine"}}})))
    track = Track(CostChoice("fbgemm"), CostChoice("simulator", {"weights": "mine"}))
    assert suite.track() == suite.track("fbgemm") == track
    assert (suite.judge, suite.oracle) == ("fbgemm", "simulator")
    assert suite.track("simulator") == SIMULATED


def test_a_suite_file_draws_from_a_pool_file_beside_it(write):
    suite = load_suite(write(spec()))
    assert (suite.name, suite.judge, suite.oracle, suite.digests) == ("own", "fbgemm", "roofline", None)
    for task in suite:
        assert 3 <= task.num_tables <= 5
        assert {table.embedding_dim for table in task.tables} <= {4, 8}
        assert task.topology.memory_bytes == (100_000, 100_000)


def test_the_test_half_is_drawn_from_unless_the_file_says_otherwise(write):
    test, train, both = (
        {table.name for task in load_suite(write(spec({"count": 50}, half))) for table in task.tables}
        for half in ({}, {"half": "train"}, {"half": "all"})
    )
    assert (len(test), len(train), len(both), test & train) == (10, 10, 20, set())


def test_chosen_draws_are_those_of_the_same_numbers(write):
    every = load_suite(write(spec({"count": 9})))
    chosen = load_suite(write(spec({"draws": [8, 2, 5]}), "chosen.yaml"))
    assert [task.tables for task in chosen] == [every[n].tables for n in (8, 2, 5)]
    assert [task.name for task in chosen] == ["chosen/0", "chosen/1", "chosen/2"]
    again = chosen.source.redrawn("mine.csv", "test", 9)
    assert [again.build(n, "").tables for n in range(9)] == [task.tables for task in every]


def test_a_long_drift_can_be_read_from_its_end(write):
    drift = {"kind": "drift", "seed": 1, "steps": 1000, "pooling_change": 0.1, "skew_change": 0.0}
    last = load_suite(write(spec() | {"tasks": drift | {"drawn": spec()["tasks"]}}))[999]
    assert last.name == "own/999"


def test_a_task_file_is_a_suite_of_one(write, toy_task):
    suite = load_suite(write(toy_task.to_dict(), "one.json"))
    assert suite[:] == [toy_task]
    assert suite[0].name == "toy"
    assert suite.group(0) == "2 devices"
    nameless = {**toy_task.to_dict(), "name": ""}
    suite = load_suite(write([toy_task.to_dict(), nameless], "two.json"))
    assert [task.name for task in suite] == ["toy", "two/1"]


def test_a_suite_may_put_published_models_on_devices(write):
    def suite(model):
        models = [{"model": model, "topology": "dgx-h100", "num_devices": 16}]
        return load_suite(write(spec(top={"tasks": {"kind": "published", "models": models}})))

    (task,) = suite("dlrm-dcnv2")
    assert (task.num_devices, task.optimizer, task.num_tables) == (16, "adagrad", 26)
    with pytest.raises(UnknownNameError, match="dlrm-dcnv2"):
        suite("dlrm-dcn")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (spec(top={"jugde": "x"}), r"own\.yaml: jugde"),
        (spec(top={"judge": {"cost": "simulator", "role": "judge"}}), "role"),
        (spec({"count": 10**12}), r"groups\.0\.count"),
        (spec({"num_tables": [5, 3]}), "expected smallest and largest"),
        (spec({"min_total_bytes": 10**6}), "min_total_bytes exceeds"),
        (spec({"fullness": 0.5}), "expected memory_bytes or fullness, but not both"),
        (spec({"memory_shares": [1, 2]}), "memory_shares: expected one per device, together with fullness"),
        (spec({"row_order": "blocks"}), "row_blocks: expected if and only if row_order is 'blocks'"),
        (spec({"draws": [1, 2, 2]}), "draws: expected 3 distinct numbers"),
        (spec(tasks={"kind": "random"}), "tasks: .*'random'"),
        ("", r"own\.yaml: .*SuiteSpec, got None"),
        ("[" * 800, "not valid YAML"),
        ("- 1\n- 2\n", r"own\.yaml, task 0"),
        ("[]", "an empty list, expected tasks"),
    ],
)
def test_a_bad_suite_file_is_one_line_that_names_the_field(write, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load_suite(write(content))
    assert "\n" not in str(caught.value)
    assert "own.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": {"num_tables": [3, 50]}}, "draws up to 50 tables, but the test half of pool 'mine.csv' has 10"),
        ({"group": {"max_total_bytes": 100}}, "no . tables within its size limits"),
        ({"tasks": {"batch_size": 1024}}, "batch_size is 1024, .* batches of 65536"),
        ({"tasks": {"scale": 3}}, "cannot be scaled by 3"),
        ({"tasks": {"pool": "none.csv"}}, "there is no such file"),
        (
            {"group": {"row_order": "scattered"}},
            "row_order 'scattered' of group .* needs ids of kind 'zipf', but table 't.*'uni",
        ),
    ],
)
def test_a_suite_that_cannot_be_drawn_fails_at_its_first_task(write, monkeypatch, change, message):
    monkeypatch.setattr("shardgym.tasks.suites.sources.MAX_DRAWS", 100)
    suite = load_suite(write(spec(**change)))
    with pytest.raises(InputError, match=message):
        suite[0]


def test_a_suite_without_digests_says_what_writes_them(write, monkeypatch):
    monkeypatch.setattr("shardgym.tasks.suites.suite.DATA", write(spec(), "bare.yaml").parent)
    with pytest.raises(InputError, match=r"'python tools/draw_suite\.py digests bare' writes them"):
        load_suite("bare")


@functools.cache
def shipped(name):
    """Load a suite once: building its tasks takes longer than all that is tested of them."""
    return load_suite(name)


@pytest.fixture(params=suite_names())
def suite(request):
    return shipped(request.param)


def test_every_task_is_the_one_that_was_published(suite):
    """All that a file may say of groups is said by some: turns, limits of sizes, fullness, where popular rows lie."""
    assert len(list(suite)) == len(suite) == len(suite.digests)
    assert [task.digest for task in suite] == list(suite.digests)
    assert len(set(suite.digests)) == len(suite)
    assert suite[len(suite) - 1].name == f"{suite.name}/{len(suite) - 1}"


GPU_JUDGED = ["dlrm4-gpu-v1", "nodes16-v1", "production-v1", "published-v1", "dlrm-v4", "tiers-v1", "drift-v1"]


@pytest.mark.parametrize("name", GPU_JUDGED)
def test_gpu_suites_are_judged_without_a_gpu(name):
    """The judge knows the card of every task, and measures nothing."""
    suite = shipped(name)
    track = suite.track()
    assert (track.judge.cost, track.oracle.cost, len(suite.tracks)) == ("gpu", "roofline", 1)
    judge = make_cost(track.judge.cost, **track.judge.settings)
    cards = {task.topology.device: task for task in suite}
    for task in cards.values():
        (cost,) = judge.score(task, [ShardingPlan.table_wise(task, [0] * task.num_tables)])
        assert (cost.compute, cost.communication) == ("modelled", "modelled")
        assert 0 < cost.total_ms < math.inf
