"""Records: frozen, strict, JSON round trip, identity."""

import dataclasses
import pickle
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym import EmbeddingTable, InputError, PlanCost, RecordedIds, ShardingPlan, ShardingTask, UniformIds, ZipfIds
from shardgym.errors import short_repr
from shardgym.records import CONFIG, Record
from shardgym.tasks.topology import Topology

ids = st.one_of(
    st.builds(UniformIds, lengths=st.sampled_from(["fixed", "poisson"])),
    st.builds(ZipfIds, s=st.floats(0, 10), q=st.floats(-0.4, 1e9)),
    st.builds(
        RecordedIds,
        file=st.just("a.pt"),
        feature=st.text("abc", min_size=1, max_size=8),
        samples=st.sampled_from([12, 24]),
        batch_size=st.sampled_from([1, 4, 12]),
        sha256=st.just("0" * 64),
    ),
)
tables = st.builds(
    EmbeddingTable,
    name=st.text("abc", min_size=1, max_size=8),
    num_embeddings=st.integers(1, 2**40),
    embedding_dim=st.integers(1, 2**16),
    pooling_factor=st.floats(0, 1e6),
    ids=ids,
    reuse_histogram=st.sampled_from([None, (1.0, *[0.0] * 16), (0.0,) * 17]),
)


@settings(max_examples=50)
@given(tables)
def test_a_table_survives_json_and_pickle_with_the_same_identity(table: EmbeddingTable):
    assert EmbeddingTable.from_json(table.to_json()) == table
    assert EmbeddingTable.from_json(table.to_json(indent=1)).digest == table.digest
    assert pickle.loads(pickle.dumps(table)) == table


@settings(max_examples=50)
@given(tables, tables)
def test_what_differs_has_another_identity(table: EmbeddingTable, other: EmbeddingTable):
    other = dataclasses.replace(other, name=table.name, num_embeddings=table.num_embeddings)
    assert (table == other) == (table.digest == other.digest)


def test_a_task_keeps_its_identity_when_it_is_renamed(toy_task: ShardingTask):
    assert dataclasses.replace(toy_task, name="other").digest == toy_task.digest
    assert dataclasses.replace(toy_task, batch_size=8).digest != toy_task.digest


@dataclass(frozen=True, config=CONFIG)
class Older(Record):
    """A record, alone and inside of others, before fields were added."""

    size: int
    label: str = "none"
    schema: Literal["shardgym.older/1"] = "shardgym.older/1"


@dataclass(frozen=True, config=CONFIG)
class Newer(Older):
    """The same with more fields, one of them in the middle of the alphabet."""

    notes: tuple[str, ...] = ()
    cause: Older | None = None
    options: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True, config=CONFIG)
class Holder(Record):
    """Records inside of a record."""

    first: Newer | Older
    rest: tuple[Newer | Older, ...] = ()
    named: dict[str, Newer | Older] = Field(default_factory=dict)


def test_a_new_field_with_a_default_changes_no_digest():
    old = Older(3, "x")
    new = Newer(3, "x")
    assert new.digest == old.digest
    held = [Holder(record, (record,) * 2, {"a": record}) for record in (old, new)]
    assert held[0].digest == held[1].digest
    assert held[0].identity()["named"] == {"a": {"size": 3, "label": "x", "schema": "shardgym.older/1"}}
    others = [dataclasses.replace(new, **change) for change in (
        {"notes": ("",)}, {"cause": Older(0)}, {"options": {"a": 0}}, {"label": "none"}, {"label": ""},
    )]  # fmt: skip
    assert len({record.digest for record in (new, *others)}) == 6
    assert Holder(new, named={"a": others[0]}).digest != Holder(new, named={"a": new}).digest


def test_a_known_task_has_the_identity_it_had_when_it_was_released(toy_task: ShardingTask):
    assert toy_task.digest == "fbbd2186f0d71d52400087b66070889a036b2f9c38890b29a42d493546ec30a8"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_embeddings": -1}, "num_embeddings: Input should be greater than or equal to 1, got -1"),
        ({"num_embeddings": 2**41}, "num_embeddings: Input should be less than or equal to 1099511627776, got 219902"),
        ({"num_embeddings": "2"}, "expected an integer, got '2'"),
        ({"num_embeddings": True}, "expected an integer, not a boolean"),
        ({"name": " a"}, "name: "),
        ({"schema": "shardgym.table/2"}, "schema: Input should be 'shardgym.table/1', got 'shardgym.table/2'"),
        ({"ids": {"kind": "zipfian"}}, "ids: "),
        ({"reuse_histogram": [0.5] * 17}, "bins must sum to 1"),
    ],
)
def test_a_bad_field_is_refused_in_one_line_that_names_it(change: dict[str, object], message: str):
    data = EmbeddingTable("a", 10, 4).to_dict() | change
    with pytest.raises(InputError) as error:
        EmbeddingTable.from_dict(data, source="tables.json")
    assert message in str(error.value)
    assert str(error.value).startswith("tables.json: ")
    assert "\n" not in str(error.value)


def test_hosts_are_whole_parts_of_a_fast_domain():
    rack = Topology(144, 2**34, fast_domain_size=72, host_size=2)
    assert (rack.devices_per_host, dataclasses.replace(rack, host_size=None).devices_per_host) == (2, 72)
    assert Topology.from_json(rack.to_json()) == rack
    assert rack.roomy(3).devices_per_host == 3
    # Those who do not say so have the digests that they had.
    assert "host_size" not in dataclasses.replace(rack, host_size=None).identity()
    for host_size in (144, 5):
        with pytest.raises(InputError, match=f"host_size {host_size} does not divide the fast domain of 72 devices"):
            dataclasses.replace(rack, host_size=host_size)


def test_table_names_are_distinct_within_a_task(toy_task: ShardingTask):
    with pytest.raises(ValueError, match="'wide' occurs more than once"):
        dataclasses.replace(toy_task, tables=(*toy_task.tables, toy_task.tables[0]))


def test_equal_records_have_equal_digests_whatever_the_sign_of_zero():
    plus, minus = (EmbeddingTable("a", 10, 4, z, ZipfIds(1.0, z), (z,) * 17) for z in (0.0, -0.0))
    assert plus == minus
    assert plus.digest == minus.digest
    far, near = (Topology(num_devices=1, memory_bytes=1, intra_latency_ms=z) for z in (0.0, -0.0))
    assert (far, far.digest) == (near, near.digest)
    costs = [PlanCost(m, "toy", "1", "none") for m in (np.zeros((1, 5)), np.full((1, 5), -0.0), [[-0.0] * 5])]
    assert len({cost.digest for cost in costs}) == 1


def test_short_repr_is_short_however_large_the_value_is():
    bomb: list[object] = ["lol"] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    assert len(short_repr(bomb)) <= 60
    with pytest.raises(InputError, match="expected an integer, got"):
        EmbeddingTable.from_dict({"name": "a", "num_embeddings": bomb, "embedding_dim": 4})
    with pytest.raises(InputError, match=r"name: Input should be a valid string, got "):
        EmbeddingTable.from_dict({"name": bomb, "num_embeddings": 1, "embedding_dim": 4})


def test_a_record_that_was_not_checked_is_the_same_as_one_that_was(toy_task):
    checked = ShardingPlan.table_wise(toy_task, [0] * toy_task.num_tables)
    made = ShardingPlan.unchecked(task_hash=checked.task_hash, shards=checked.shards)
    assert (made, made.to_json(), made.digest) == (checked, checked.to_json(), checked.digest)
    cost = PlanCost(np.ones((2, 5)), "toy", "1", "none")
    fields = {"per_device": cost.per_device, "cost": "toy", "version": "1", "hardware": "none"}
    assert PlanCost.unchecked(**fields).to_json() == cost.to_json()


def test_records_are_frozen_and_take_numpys_whole_numbers(toy_task: ShardingTask):
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy_task.batch_size = 3  # type: ignore[misc]
    table = EmbeddingTable("a", np.int64(10), np.int32(4))
    assert table == EmbeddingTable("a", 10, 4)
    assert type(table.num_embeddings) is int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # It may be the field that is missing, misspelt.
        (
            {"batchsize": 4, "batch_size": None},
            r"batchsize: there is no such field: did you mean batch_size\? \(and 1 m",
        ),
        ({"batch_size": 2.5}, r"^a\.json: batch_size: expected an integer, got 2\.5$"),
        ({"schema": "shardgym.plan/2"}, r"^a\.json: schema: Input should be 'shardgym.task/1', got 'shardgym.plan/2'"),
    ],
)
def test_what_is_wrong_first_is_named_first(toy_task: ShardingTask, change, message):
    data = {name: value for name, value in (toy_task.to_dict() | change).items() if value is not None}
    with pytest.raises(InputError, match=message):
        ShardingTask.from_dict(data, "a.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", '{"name":"a","num_embeddings":1,"embedding_dim":4,"pooling_factor":NaN}']
)
def test_text_that_is_no_record_is_refused(text: str):
    with pytest.raises(InputError):
        EmbeddingTable.from_json(text)


def test_files_may_have_a_byte_order_mark_and_others_are_refused_by_name(tmp_path, toy_task: ShardingTask):
    path = tmp_path / "task.json"
    path.write_text(toy_task.to_json(), encoding="utf-8-sig")
    assert ShardingTask.load(path) == toy_task
    with pytest.raises(InputError, match=r"nowhere\.json: there is no such file"):
        EmbeddingTable.load(tmp_path / "nowhere.json")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a UTF-8 text file"):
        EmbeddingTable.load(path)


def test_one_memory_size_stands_for_all_devices_which_share_fast_links():
    topology = Topology(num_devices=np.int64(3), memory_bytes=np.int64(10))
    assert (topology.memory_bytes, topology.fast_domain_size) == ((10, 10, 10), 3)
    assert topology == Topology.from_dict({"num_devices": 3, "memory_bytes": [10, 10, 10]})
    assert Topology(16, 1, "a100") == Topology.preset("dgx-a100", 16, memory_bytes=1)
    assert Topology(2, 1, "a100", inter_bandwidth=7e9).intra_bandwidth == 300e9
    assert Topology.preset("dgx-a100", 2, memory_bytes=7).memory_bytes == (7, 7)
    for name, count, message in (
        ("dgx-a10", 8, "did you mean dgx-a100"),
        ("cpu", 0, "num_devices: expected an integer >= 1, got 0"),
        ("cpu", 10**12, "num_devices: expected at most 65536, got 1000000000000"),
    ):
        with pytest.raises(InputError, match=message):
            Topology.preset(name, count)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_bytes": [1]}, "memory_bytes"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": True}, "memory_bytes"),
        ({"memory_bytes": 5, "fast_domain_size": 3}, "fast_domain_size"),
        ({"memory_bytes": 5, "device": "a10"}, "no preset has device 'a10': give the bandwidths"),
        ({"memory_bytes": 5, "intra_bandwidth": 25}, "intra_bandwidth: expected bytes per second, 1e3 to 1e18"),
        ({"memory_bytes": 5, "num_devices": 10**12}, "num_devices: "),
    ],
)
def test_a_topology_that_contradicts_itself_is_refused(fields: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Topology.from_dict({"num_devices": 2, **fields})


def test_total_cost_is_that_of_the_slowest_device():
    given = np.array([[0, 1, 2, 3, 4], [0, 5, 5, 1, 0]])
    cost = PlanCost(given, "toy", "1", "none")
    given[0, 0] = 9
    assert (cost.total_ms, cost.slowest_device, cost.per_device.shape) == (11, 1, (2, 5))
    assert PlanCost.from_json(cost.to_json()) == cost == PlanCost(cost.per_device.tolist(), "toy", "1", "none")
    with pytest.raises(ValueError, match="read-only"):
        cost.per_device[0, 0] = 3


def test_an_infeasible_cost_is_infinite_and_says_why():
    cost = PlanCost([[None] * 5], "toy", "1", "none", reason="too big")
    assert (cost.total_ms, cost.feasible) == (float("inf"), False)
    assert PlanCost.from_json(cost.to_json()) == cost  # JSON has no infinity
    for matrix, reason in (([[1] * 5], "why"), ([[None] * 5], None)):
        with pytest.raises(InputError, match="PlanCost: expected finite times or a reason"):
            PlanCost(matrix, "toy", "1", "none", reason=reason)


@pytest.mark.parametrize(
    "matrix",
    [None, {}, 3, "1234", ["1234"], [[True] * 5], [["1"] * 5], [[10**400] * 5], [[1, 1, 1, 1]], [[-1] * 5], [],
     [[float("nan")] * 5], np.ones(5), np.array(["a"] * 4), np.ones((1, 5), dtype=complex), np.ones((0, 5))],
)  # fmt: skip
def test_times_that_are_no_matrix_of_numbers_are_one_line(matrix):
    data = {"per_device": matrix, "cost": "toy", "version": "1", "hardware": "none"}
    with pytest.raises(InputError, match=r"^PlanCost: per_device: .*$"):
        PlanCost.from_dict(data)
