"""What environments take for arguments and reset options, what they refuse, and tasks of a pool."""

import numpy as np
import pytest
from env_toys import halvable_task

from shardgym import InputError, load_pool, load_suite
from shardgym.costs.roofline import RooflineCost
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.envs.tasks import PER_GROUP, POOL_TASKS, PoolTasks

POOL = "synthetic-2021"
TWO, THREE = halvable_task([4, 4], 2, name="two"), halvable_task([4, 4], 3, name="three")


def test_options_choose_the_task():
    """Tasks that differ in name alone keep their names."""
    env = TableWiseEnv(tasks=[TWO, halvable_task([4, 4], 2, name="another"), THREE])
    indices = (1, 0, np.int64(2), 0)
    named = [env.reset(options={"task_index": i})[1]["task"] for i in indices]
    assert named == ["another", "two", "three", "two"]
    other = halvable_task([4, 4], 1, name="other")
    _, info = env.reset(options={"task": other})
    assert (info["task"], info["task_index"], info["task_hash"]) == ("other", -1, other.digest)
    assert env.step(0)[4]["task"] == "other"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_index": 2}, "task_index 2 is out of range: expected 0 to 1"),
        ({"task_index": -1}, "task_index: expected an integer >= 0, got -1"),
        ({"task_idx": 0}, "unknown reset option 'task_idx': did you mean task_index"),
        ({"task": "two"}, "task: expected a ShardingTask, got str 'two'; for the index of a task, give task_index"),
        ({"task": TWO, "task_index": 0}, "got both"),
        ({"task": halvable_task([4], 4)}, "4 devices.*at most 3.*max_devices=4"),
    ],
)
def test_bad_options_are_input_errors(options, message):
    with pytest.raises(InputError, match=message):
        TableWiseEnv(tasks=[TWO, THREE]).reset(options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": []}, "at least one task"),
        ({"tasks": TWO}, r"expected a list of tasks, got one: give tasks=\[task\]"),
        ({"tasks": [TWO], "suite": "quick-v2"}, "got both"),
        ({"tasks": [TWO], "pool": POOL}, "expected a pool or tasks, got both"),
        ({"tasks": [TWO], "order": "sizes"}, "unknown order 'sizes': did you mean size"),
        ({"tasks": [TWO], "cost": "roof"}, "unknown cost 'roof': did you mean roofline"),
        ({"tasks": [TWO], "observation": "all"}, "unknown observation 'all'"),
        ({"tasks": [TWO], "reward": "relativ"}, "unknown reward 'relativ': did you mean relative"),
        ({"tasks": [TWO], "max_devices": "x"}, "max_devices: expected an integer >= 1, got 'x'"),
        ({"tasks": [TWO], "cost": RooflineCost(), "cost_settings": {"hardware": "h100"}}, "given by name"),
        ({"tasks": [TWO], "cost_settings": {"hardwear": "h100"}}, "has no setting 'hardwear'"),
        ({"tasks": [TWO], "penalty": 1.0}, "penalty 1.0 is not a negative number"),
        ({"tasks": [TWO], "penalty": float("-inf")}, "penalty -inf is not a negative number"),
        ({"tasks": [TWO], "render_mode": "human"}, "unknown render_mode 'human'"),
        ({"tasks": [THREE], "max_devices": 2}, "3 devices.*at most 2"),
        ({"tasks": [TWO], "max_tables": 1, "observation": "full"}, "2 tables.*at most 1.*max_tables=2"),
        ({"tasks": [TWO], "max_splits": -1}, "max_splits: expected an integer >= 0, got -1"),
        ({"pool": "synthetic"}, "unknown pool 'synthetic': did you mean synthetic-2022 or synthetic-2021"),
        ({"pool": POOL, "suite": "published-v1"}, "suite 'published-v1' is not drawn at random"),
        ({"tasks": [TWO], "cost": RooflineCost}, "cost: expected a CostModel, got "),
        ({"flat": True}, "flat: expected different names of numbers and mask, got True"),
        ({"flat": ("obs", "obs")}, "flat: expected different names"),
        ({"pool_tasks": 5}, "pool_tasks needs a pool: give pool"),
        ({"pool": POOL, "pool_tasks": 0}, "pool_tasks: expected an integer >= 1, got 0"),
        ({"pool": POOL, "pool_tasks": 10**9}, "pool_tasks 1000000000: expected at most"),
    ],
)
def test_bad_arguments_are_input_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        ColumnWiseEnv(**arguments).reset()


def test_spaces_may_be_larger_than_the_tasks():
    env = TableWiseEnv(tasks=[TWO], max_devices=np.int64(5), penalty=np.float32(-2))
    assert env.action_space.n == 5
    assert env.reset()[0]["action_mask"].tolist() == [1, 1, 0, 0, 0]


@pytest.fixture(scope="module")
def pool_tasks():
    return PoolTasks(POOL, "quick-v2")


def names(task):
    return {table.name for table in task.tables}


def test_no_table_of_the_test_half_is_seen_in_training(pool_tasks):
    train, test = load_pool(POOL).split()
    seen = set().union(*(names(pool_tasks[i]) for i in range(100)))
    assert seen <= {table.name for table in train}
    assert not seen & {table.name for table in test}
    assert not seen & set().union(*map(names, load_suite("quick-v2")))
    assert len(seen) > 300


def test_tasks_of_a_pool_are_sized_like_those_of_the_suite(pool_tasks):
    suite = load_suite("quick-v2")
    groups = suite.source.groups
    assert len(pool_tasks) == PER_GROUP * len(groups)
    assert pool_tasks.max_devices == max(task.num_devices for task in suite) == 4
    assert pool_tasks.max_tables == 20 >= max(task.num_tables for task in suite)
    for index in range(12):
        task, group = pool_tasks[index], groups[index % len(groups)]
        assert (task.num_devices, task.batch_size) == (group.num_devices, suite[0].batch_size)
        assert group.num_tables[0] <= task.num_tables <= group.num_tables[1]
        assert {table.embedding_dim for table in task.tables} <= set(group.dims)
        assert task.total_bytes <= group.max_total_bytes * 1.01
        assert task.total_bytes == pytest.approx(group.fullness * sum(task.capacity_bytes), rel=0.01)


def test_a_task_of_a_pool_is_the_same_whenever_it_is_drawn(pool_tasks, tmp_path):
    """A number of them are the first ones, drawn once; so are those of a file."""
    path = tmp_path / "pool.json"
    path.write_text(load_pool(POOL).to_json())
    few = PoolTasks(str(path), "quick-v2", 3)
    assert [task.tables for task in few] == [task.tables for task in pool_tasks[:3]]
    assert few[1] is few[1]
    assert pool_tasks[30_000].digest == PoolTasks(POOL, "quick-v2")[30_000].digest
    assert len({pool_tasks[i].digest for i in range(50)}) == 50
    env = TableWiseEnv(pool=POOL, pool_tasks=3)
    env.reset(seed=0)
    assert {env.reset()[1]["task_index"] for _ in range(30)} == {0, 1, 2}


def test_of_so_many_tasks_as_nobody_asked_for_some_are_played(pool_tasks):
    env = TableWiseEnv(pool=POOL)
    assert env.reset(options={"task_index": 3})[1]["task_hash"] == pool_tasks[3].digest
    with pytest.raises(InputError, match=f"task_index {POOL_TASKS} is out of range"):
        env.reset(options={"task_index": POOL_TASKS})
