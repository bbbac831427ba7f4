"""What TableWiseEnv takes for arguments and reset options, and what it refuses."""

import gymnasium
import numpy as np
import pytest

from shardgym.costs.roofline import RooflineCost
from shardgym.envs.env import TableWiseEnv
from shardgym.errors import InputError
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology


def make_task(devices, name=""):
    topology = Topology(num_devices=devices, memory_bytes=2**20)
    return ShardingTask((EmbeddingTable("a", 10, 4), EmbeddingTable("b", 20, 4)), topology, batch_size=64, name=name)


TWO, THREE = make_task(2, "two"), make_task(3, "three")


def test_options_choose_the_task():
    env = TableWiseEnv(tasks=[TWO, THREE])
    assert [env.reset(options={"task_index": i})[1]["task"] for i in (1, 0, 1)] == ["three", "two", "three"]
    other = make_task(1, "other")
    _, info = env.reset(options={"task": other})
    assert (info["task"], info["task_index"], info["task_hash"]) == ("other", -1, other.digest)
    assert env.step(0)[4]["task"] == "other"


def test_tasks_that_differ_in_name_alone_keep_their_names():
    env = TableWiseEnv(tasks=[make_task(2, "one"), make_task(2, "another")])
    assert [env.reset(options={"task_index": i})[1]["task"] for i in (0, 1, 0)] == ["one", "another", "one"]


def test_without_options_tasks_are_drawn_by_the_seed():
    env = TableWiseEnv(tasks=[make_task(1, str(i)) for i in range(5)])
    env.reset(seed=3)
    drawn = [env.reset()[1]["task_index"] for _ in range(60)]
    env.reset(seed=3)
    assert [env.reset()[1]["task_index"] for _ in range(60)] == drawn
    assert set(drawn) == set(range(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_index": 2}, "task_index 2 is out of range: expected 0 to 1"),
        ({"task_idx": 0}, "unknown reset option 'task_idx': did you mean task_index"),
        ({"task": "two"}, "task: expected a ShardingTask, got str 'two'; ShardingTask.load"),
        ([0], r"options: expected a dictionary with names for keys, got list \[0\]"),
        ({"task": TWO, "task_index": 0}, "got both"),
        ({"task": make_task(4)}, "4 devices.*at most 3.*max_devices=4"),
    ],
)
def test_bad_options_are_input_errors(options, message):
    with pytest.raises(InputError, match=message):
        TableWiseEnv(tasks=[TWO, THREE]).reset(options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": []}, "at least one task"),
        ({"tasks": [TWO], "suite": "quick-v1"}, "got both"),
        ({"tasks": [TWO], "order": "sizes"}, "unknown order 'sizes': did you mean size"),
        ({"tasks": [TWO], "cost": "roof"}, "unknown cost 'roof': did you mean roofline"),
        ({"tasks": [TWO], "cost": RooflineCost}, "cost: expected .*, got the class RooflineCost"),
        ({"suite": 3}, "suite: expected a name or the path of a file, got int 3"),
        ({"suite": load_suite("tiny-v1")}, "suite: .*, got Suite; tasks=suite takes a suite that is loaded"),
        ({"tasks": TWO}, r"tasks: expected a list of ShardingTask, got ShardingTask; a single task goes into a list"),
        ({"tasks": [TWO, "x"], "max_devices": 4}, r"tasks\[1\]: expected a ShardingTask, got str 'x'"),
        ({"tasks": range(2)}, "a member of tasks: expected a ShardingTask, got int 0"),
        ({"tasks": [TWO], "observation": 3}, "unknown observation '3'"),
        ({"tasks": [TWO], "reward": 1.5}, "unknown reward '1.5'"),
        ({"tasks": [TWO], "max_devices": "x"}, "max_devices 'x' is not a whole number from 1 on"),
        ({"tasks": [TWO], "cost": RooflineCost(), "cost_settings": {"hardware": "h100"}}, "given by name"),
        ({"tasks": [TWO], "cost_settings": {"hardwear": "h100"}}, "has no setting 'hardwear'"),
        ({"tasks": [TWO], "penalty": 1.0}, "not a negative number"),
        ({"tasks": [TWO], "render_mode": "human"}, "unknown render_mode 'human'"),
        ({"tasks": [THREE], "max_devices": 2}, "3 devices.*at most 2"),
    ],
)
def test_bad_arguments_are_input_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        TableWiseEnv(**arguments).reset()


@pytest.mark.parametrize(
    ("env_id", "arguments", "message"),
    [
        ("TableWise", {"max_splits": 3}, "unknown argument of TableWiseEnv 'max_splits': "),
        (
            "ColumnWise",
            {"level": 3},
            "unknown argument of ColumnWiseEnv 'level': known: cost, .*, max_splits, .*, tasks",
        ),
        ("ColumnWise", {"max_split": 3}, "'max_split': did you mean max_splits"),
        ("AnyWise", {"obsevation": "timed"}, "unknown argument of AnyWiseEnv 'obsevation': did you mean observation"),
    ],
)
def test_unknown_arguments_name_the_known_ones(env_id, arguments, message):
    with pytest.raises(InputError, match=message):
        gymnasium.make(f"ShardGym/{env_id}-v0", tasks=[TWO], **arguments)
    with pytest.raises(InputError, match=message):
        gymnasium.make_vec(f"ShardGym/{env_id}-v0", 2, tasks=[TWO], **arguments)


def test_tasks_may_come_from_a_generator_and_numbers_from_numpy():
    env = TableWiseEnv(tasks=(task for task in (TWO, THREE)), max_devices=np.int64(5), penalty=np.float32(-2))
    assert env.reset(options={"task_index": np.int64(1)})[1]["task"] == "three"
    assert env.action_space.n == 5


def test_an_unknown_render_mode_is_a_type_error_too():
    """Makers of vectorised environments try a mode and go on without it after a `TypeError`."""
    with pytest.raises(TypeError, match="unknown render_mode 'rgb': expected None or 'ansi' or 'rgb_array'"):
        TableWiseEnv(tasks=[TWO], render_mode="rgb")
