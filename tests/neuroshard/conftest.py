"""Simulators with random weights that know all tasks of `random_tasks.py`."""

import numpy as np
import pytest
from random_simulator import random_simulator
from random_tasks import random_task


def random_oracle(folder, *, steps: bool):
    return random_simulator(
        folder / "oracle.safetensors", random_task(1, 200, 2), np.random.default_rng(2), steps=steps,
        precisions=("fp32", "fp16"), optimizers=("exact_sgd", "rowwise_adagrad", "adam"),
    )  # fmt: skip


@pytest.fixture(scope="session")
def simulator(tmp_path_factory):
    """An oracle for any number of devices."""
    return random_oracle(tmp_path_factory.mktemp("random"), steps=True)


@pytest.fixture(scope="session")
def compute_simulator(tmp_path_factory):
    """The same, of kernels alone: ids are hidden."""
    return random_oracle(tmp_path_factory.mktemp("random"), steps=False)
