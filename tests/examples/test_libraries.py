"""The example of each reinforcement learning library runs for a short while, where the library is installed."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Libraries that scripts need besides torch.
LIBRARIES = {
    "cleanrl_ppo": (), "rllib_ppo": ("ray",), "tianshou_dqn": ("tianshou",), "torchrl_ppo": ("torchrl", "tensordict")
}  # fmt: skip

pytestmark = pytest.mark.repository


def test_rllib_gets_the_entries_that_its_module_for_masks_takes(monkeypatch):
    """Without RLlib: the environment that it trains in, and playing the tasks of dlrm4-v2 by any policy."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import rllib_ppo

    env = rllib_ppo.make_env(rllib_ppo.TRAINING)
    observation, _ = env.reset(seed=0)
    assert isinstance(env.observation_space, spaces.Dict)
    assert set(env.observation_space) == {"observations", "action_mask"}
    assert observation in env.observation_space
    assert observation["action_mask"].shape == (env.action_space.n,)
    costs = rllib_ppo.evaluate(lambda seen: int(np.argmax(seen["action_mask"])))
    assert len(costs) == 30
    assert sum(math.isfinite(cost) for cost in costs) > 20


@pytest.mark.slow
@pytest.mark.parametrize("script", LIBRARIES)
def test_it_trains_and_plays_every_task(script: str):
    for library in LIBRARIES[script]:
        pytest.importorskip(library, reason="an example's library, which no extra brings")
    command = [sys.executable, str(EXAMPLES / f"{script}.py"), "--steps", "2048"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout.splitlines()[-1]
    assert last.startswith("dlrm4-v2: ")
    assert len(last.split(" ms on average, ")[1].split(", ")) == 30
