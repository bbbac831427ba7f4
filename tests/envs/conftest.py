"""A simulator for environments."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def simulator(tmp_path_factory):
    """An oracle with random weights for any number of devices."""
    from env_toys import random_task
    from random_simulator import random_simulator

    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("random") / "oracle.safetensors"
    return random_simulator(path, random_task(rng, 200, 2), rng, steps=True)
