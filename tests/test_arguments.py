"""Arguments of public calls that are of another kind are refused in one line that names them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology, load_pool, load_suite
from shardgym.arguments import check_dict, check_index, check_instance, check_int, check_list, check_list_of, describe

TOPOLOGY = Topology(num_devices=2, memory_bytes=2**20)
TASK = ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 20, 4)), TOPOLOGY, batch_size=64)
PLAN = ShardingPlan.table_wise(TASK, [0, 1])


class Odd:
    """Something of no use, whose `repr` must not be asked for."""

    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "None"), (3, "int 3"), ("x", "str 'x'"), (Odd(), "Odd"), (Odd, "the class Odd"), (math.nan, "float nan")],
)
def test_describe_names_the_type_and_shows_plain_values(value, text):
    assert describe(value) == text
    assert len(describe(["x" * 1000] * 1000)) < 80


@pytest.mark.parametrize("value", [3, np.int64(3), np.array(3)])
def test_whole_numbers_are_pythons_and_numpys(value):
    assert (check_int("n", value), type(check_int("n", value))) == (3, int)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, [1], np.float64(1), np.array([1, 2]), int, Odd()])
def test_nothing_else_is_a_whole_number(value):
    with pytest.raises(InputError, match=r"^n .* is not a whole number from 0 on$"):
        check_int("n", value)


def test_members_have_an_order_unless_it_does_not_matter():
    assert check_list("x", (n for n in range(2)), "numbers") == check_list("x", np.arange(2), "numbers") == [0, 1]
    assert check_list("x", {3}, "numbers", ordered=False) == [3]
    for value in ({3}, {3: 4}, "34", b"3", 3, None, np.array(3)):
        with pytest.raises(InputError, match=r"^x: expected a list of numbers, got .*; do so$"):
            check_list("x", value, "numbers", "do so")


def test_a_member_of_another_kind_is_named_by_its_number():
    with pytest.raises(InputError, match=r"^x\[1\]: expected a int, got str 'b'$"):
        check_list_of("x", [1, "b"], int)
    with pytest.raises(InputError, match=r"^x: expected an InputError, got str 'b'; raise it$"):
        check_instance("x", "b", InputError, "raise it")


def test_dictionaries_have_names_for_keys_and_are_copied():
    mine = {"a": 1}
    assert check_dict("x", mine) == mine is not check_dict("x", mine)
    assert check_dict("x", None) == {}
    for value in ([], 0, "", {3: 4}, [("a", 1)]):
        with pytest.raises(InputError, match=r"^x: expected a dictionary with names for keys, got"):
            check_dict("x", value)


def test_a_position_is_a_whole_number_in_range():
    assert [check_index("it", "leg", index, 3) for index in (0, -1, np.int8(2))] == [0, 2, 2]
    with pytest.raises(IndexError, match=r"^it has legs 0 to 2, there is no leg -4$"):
        check_index("it", "leg", -4, 3)
    with pytest.raises(InputError, match=r"^it has legs 0 to 2: expected a whole number, got float 1.0$"):
        check_index("it", "leg", 1.0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_suite(3), "suite: expected a name or the path of a file, got int 3"),
        (lambda: load_pool(None), "pool: expected a name or the path of a file, got None"),
        (lambda: load_suite("tiny-v1").track([1]), r"judge: expected a str, got list \[1\]; the name of a cost model"),
        (lambda: load_pool("synthetic-2021").scaled("2"), "cannot be scaled by '2': expected a whole divisor of"),
        (lambda: ShardingPlan.table_wise("t.json", [0]), "task: expected a ShardingTask, got str 't.json'; Sharding"),
        (lambda: Shard.whole("a", 0), r"table: expected an EmbeddingTable, got str 'a'; task.table\(name\) finds one"),
        (lambda: PLAN.bytes_per_device(load_suite("tiny-v1")), r"task: .* got Suite; .* suite\[0\] is one of a suite"),
        (lambda: TASK.table(3), "unknown table '3': known: a, b"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_with_its_name(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_paths_numpy_numbers_generators_and_sets_are_accepted():
    """Paths, NumPy's numbers, generators and, where order does not matter, sets."""
    assert load_suite(Path("tiny-v1")).name == "tiny-v1"
    assert load_suite("tiny-v1")[np.int64(-1)] == load_suite("tiny-v1")[11]
    assert ShardingPlan.table_wise(TASK, np.array([0, 1])) == PLAN
    assert ShardingPlan.table_wise(TASK, (n for n in (0, 1))) == PLAN
    assert ShardingPlan.of(TASK, set(PLAN.shards)) == ShardingPlan.of(TASK, iter(PLAN.shards)) == PLAN
