"""Text and pictures of placements, read back pixel by pixel."""

import sys

import gymnasium
import numpy as np
import pytest
from env_toys import Unmeasured, halvable_task, play

pytest.importorskip("PIL", reason="pictures need the extra 'data'")

from shardgym import MissingDependencyError
from shardgym.costs.roofline import RooflineCost
from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
from shardgym.envs.render import COMM, COMPUTE, INK, MEMORY, PAPER, SLOWEST, TRACK
from shardgym.tasks.step_memory import StepMemory

#: With two devices, cells of 96 pixels begin at 16: time bars at 22 to 58, memory bars at 70 to 106.
TIME, MEM = (40, 136), (88, 184)
TOP, HEIGHT = 40, 290


def picture_after(actions, **arguments):
    env = TableWiseEnv(tasks=[halvable_task([16, 8], memory_bytes=8192)], render_mode="rgb_array", **arguments)
    play(env, actions)
    return env.render(), env


def bars(picture, x):
    """The bar from top to bottom as {colour: share}."""
    seen, counts = np.unique(picture[TOP : TOP + HEIGHT, x], axis=0, return_counts=True)
    return {tuple(colour): count / HEIGHT for colour, count in zip(seen.tolist(), counts.tolist(), strict=True)}


def test_the_picture_shows_memory_times_and_the_slowest_device():
    picture, env = picture_after([1, 0], cost=RooflineCost(hardware="v100"))
    cost = env._game.cost_of[0]
    assert (picture.shape, picture.dtype) == ((360, 320, 3), np.uint8)
    # t0, 4,096 of 8,192 bytes, is on device 1; t1, 2,048 bytes, on device 0.
    assert bars(picture, MEM[1]) == {MEMORY: 0.5, TRACK: 0.5}
    assert bars(picture, MEM[0])[MEMORY] == pytest.approx(0.25, abs=0.002)
    # The scale ends at the next 1, 2 or 5 times a power of ten.
    full = next(x for x in (0.5, 1.0, 2.0, 5.0, 10.0) if x >= cost.total_ms)
    for device, x in enumerate(TIME):
        compute = cost.per_device[device, [1, 4]].sum()
        comm = cost.per_device[device, [2, 3]].sum()
        seen = bars(picture, x)
        assert seen[COMPUTE] == pytest.approx(compute / full, abs=0.004)
        assert seen[COMM] == pytest.approx(comm / full, abs=0.004)
    marks = (picture[TOP + HEIGHT :] == SLOWEST).all(axis=2).any(axis=0)
    # Both GPUs take equally long, as one waits for the other; the one with t1, of more lookups, computes longer.
    assert cost.device_ms[0] == pytest.approx(cost.device_ms[1])
    assert cost.per_device[0, [1, 4]].sum() > cost.per_device[1, [1, 4]].sum()
    assert np.flatnonzero(marks)[[0, -1]].tolist() == [16 + 6, 16 + 89]


def test_nothing_placed_is_an_empty_picture_and_no_times_are_said():
    env = TableWiseEnv(tasks=[halvable_task([16, 8])], render_mode="rgb_array")
    env.reset()
    empty = env.render()
    assert set(map(tuple, empty.reshape(-1, 3).tolist())) == {PAPER, TRACK, INK}
    env.reset(options={"task": halvable_task([4], memory_bytes=(4096, 1024))})
    # A device with less memory has a shorter track.
    assert bars(env.render(), MEM[0]) == {TRACK: 1.0}
    assert bars(env.render(), MEM[1])[TRACK] == pytest.approx(0.25, abs=0.002)
    untimed, env = picture_after([0], cost=Unmeasured())
    assert COMPUTE not in bars(untimed, TIME[0])
    assert MEMORY in bars(untimed, MEM[0])
    env.render_mode = "ansi"
    assert env.render().splitlines()[3].split()[:4] == ["0", "1", "-", "-"]
    reserve = StepMemory(reserved_bytes=(0, 1024))
    env.reset(options={"task": halvable_task([4], memory_bytes=(4096, 1024), step_memory=reserve)})
    assert "0.0 / 0.0" in env.render()
    env.render_mode = None
    assert env.render() is None


def test_without_pillow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.ImageDraw")
    with pytest.raises(MissingDependencyError, match=r"pictures of environments.*shardgym\[data\]"):
        picture_after([1])


@pytest.mark.parametrize("devices", [1, 7, 1000])
def test_pictures_have_one_even_size_whatever_the_task(devices):
    env = TableWiseEnv(tasks=[halvable_task([4], devices=devices)], render_mode="rgb_array")
    env.reset()
    picture = env.render()
    assert picture.shape[0] == 360
    assert picture.shape[1] % 2 == 0
    env.reset(options={"task": halvable_task([4, 8], devices=1)})
    env.step(0)
    assert env.render().shape == picture.shape
    assert (env.render() == MEMORY).all(axis=2).any() or devices == 1000


def test_text_marks_the_slowest_device_and_gives_its_times():
    env = ColumnWiseEnv(tasks=[halvable_task([16, 8], memory_bytes=8192)], render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.render()
    env.reset()
    assert "*" not in env.render()
    play(env, [2, 1])
    text = env.render()
    assert text.startswith("1 of 3 shards placed; next: 't0', 64 x 8, 0.0 MiB\n")
    assert [line[:3] for line in text.splitlines()[3:5]] == ["0  ", "1 *"]
    # A quarter of the memory of device 1, of 20 characters.
    assert "#" * 5 + "." * 15 in text
    assert "* the slowest device, which sets the cost" in text
    play(env, [0, 0])
    slowest = env.render().splitlines()[3].split()
    row = env._game.cost_of[0].per_device[0]
    assert slowest[:2] == ["0", "*"]
    assert slowest[3:5] == [f"{row[1] + row[4]:.3f}", f"{row[2] + row[3]:.3f}"]
