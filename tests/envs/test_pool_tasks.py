"""Training tasks: sized like a suite's, from the half of the pool that the suite never draws from."""

import pytest

from shardgym.envs.env import TableWiseEnv
from shardgym.envs.tasks import PER_GROUP, POOL_TASKS, PoolTasks
from shardgym.errors import InputError, UnknownNameError
from shardgym.tables.pools import load_pool
from shardgym.tasks.suites import load_suite

POOL = "synthetic-2021"


def names(task):
    return {table.name for table in task.tables}


@pytest.fixture(scope="module")
def tasks():
    return PoolTasks(POOL, "quick-v1")


def test_no_table_of_the_test_half_is_seen_in_training(tasks):
    train, test = load_pool(POOL).split()
    seen = set().union(*(names(tasks[i]) for i in range(150)))
    assert seen <= {table.name for table in train}
    assert not seen & {table.name for table in test}
    assert not seen & set().union(*map(names, load_suite("quick-v1")))
    assert len(seen) > 300


def test_tasks_are_sized_like_those_of_the_suite(tasks):
    suite = load_suite("quick-v1")
    groups = suite.source.groups
    assert len(tasks) == PER_GROUP * len(groups)
    assert tasks.max_devices == max(task.num_devices for task in suite) == 4
    assert tasks.max_tables == 30 >= max(task.num_tables for task in suite)
    for index in range(24):
        task, group = tasks[index], groups[index % len(groups)]
        assert (task.num_devices, task.batch_size) == (group.num_devices, suite[0].batch_size)
        assert group.num_tables[0] <= task.num_tables <= group.num_tables[1]
        assert {table.embedding_dim for table in task.tables} <= set(group.dims)
        assert task.total_bytes <= group.max_total_bytes * 1.01
        assert task.topology == suite[index % len(groups)].topology


def test_a_task_is_the_same_whenever_it_is_drawn(tasks):
    again = PoolTasks(POOL, "quick-v1")
    assert [again[i].digest for i in (5, 0, 70_000)] == [tasks[i].digest for i in (5, 0, 70_000)]
    assert tasks[5].name == f"{POOL}/train/5"
    assert [task.digest for task in tasks[:3]] == [tasks[i].digest for i in range(3)]
    assert len({tasks[i].digest for i in range(200)}) == 200


def test_the_suite_is_the_default_one_and_an_index_asks_for_one_task(tasks):
    _, info = TableWiseEnv(pool=POOL).reset(options={"task_index": 3})
    assert info["task_hash"] == tasks[3].digest


def test_a_pool_of_ones_own_works_too(tmp_path):
    path = tmp_path / "pool.json"
    path.write_text(load_pool(POOL).to_json())
    train, _ = load_pool(path).split()
    env = TableWiseEnv(pool=str(path))
    env.reset(seed=0)
    task = env.task
    assert names(task) <= {table.name for table in train}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"pool": "synthetic"},
            UnknownNameError,
            "unknown pool 'synthetic': did you mean synthetic-2022 or synthetic-2021",
        ),
        ({"pool": POOL, "suite": "published-v1"}, InputError, "suite 'published-v1' is not drawn at random"),
        ({"pool": POOL, "tasks": load_suite("quick-v1")[:2]}, InputError, "expected a pool or tasks, got both"),
    ],
)
def test_bad_pools_are_input_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        TableWiseEnv(**arguments)


def test_a_number_of_tasks_can_be_asked_for(tasks):
    """They are the first ones, and each is drawn once."""
    few = PoolTasks(POOL, "quick-v1", 3)
    assert [few[i].digest for i in range(3)] == [tasks[i].digest for i in range(3)]
    assert few[1] is few[1]
    env = TableWiseEnv(pool=POOL, pool_tasks=3)
    env.reset(seed=0)
    assert {env.reset()[1]["task_index"] for _ in range(30)} == {0, 1, 2}


def test_of_so_many_tasks_as_nobody_asked_for_some_are_played():
    env = TableWiseEnv(pool=POOL)
    env.reset(options={"task_index": POOL_TASKS - 1})
    with pytest.raises(InputError, match=f"task_index {POOL_TASKS} is out of range"):
        env.reset(options={"task_index": POOL_TASKS})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pool_tasks": 5}, "pool_tasks is for tasks of a pool"),
        ({"pool": POOL, "pool_tasks": 0}, "pool_tasks 0 is not a whole number from 1 on"),
        ({"pool": POOL, "pool_tasks": 10**9}, "pool_tasks 1000000000: expected at most"),
    ],
)
def test_bad_numbers_of_tasks_are_input_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        TableWiseEnv(**arguments)
