"""The example of each reinforcement learning library runs for a short while, where the library is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Libraries that scripts need besides torch.
LIBRARIES = {"cleanrl_ppo": (), "tianshou_dqn": ("tianshou",), "torchrl_ppo": ("torchrl", "tensordict")}

pytestmark = [pytest.mark.repository, pytest.mark.slow]


@pytest.mark.parametrize("script", LIBRARIES)
def test_it_trains_and_plays_every_task(script: str):
    for library in LIBRARIES[script]:
        pytest.importorskip(library, reason="an example's library, which no extra brings")
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), "--steps", "2048"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert last.startswith("quick-v1: ")
    assert len(last.split(" ms on average, ")[1].split(", ")) == 10
