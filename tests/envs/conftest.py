"""A simulator for environments."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def simulator(tmp_path_factory):
    """An oracle with random weights for any number of devices."""
    from simulator_toys import random_oracle

    return random_oracle(tmp_path_factory.mktemp("random") / "oracle.safetensors")
