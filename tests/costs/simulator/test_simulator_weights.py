"""Files of weights: the same bytes for the same training, refused when they are something else."""

import json
import shutil

import numpy as np
import pytest

from shardgym import InputError, make_cost
from shardgym.costs.simulator.weights import load_weights, save_weights


@pytest.fixture
def file(model, tmp_path):
    return shutil.copy(model / "oracle.safetensors", tmp_path / "oracle.safetensors")


def edit_header(path, **changes):
    """Rewrite the header of a safetensors file: 8 bytes of length, then JSON."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"]["shardgym"] = json.dumps({**json.loads(header["__metadata__"]["shardgym"]), **changes})
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def test_weights_come_back_as_they_were_saved(file, tmp_path):
    weights = load_weights(file, "oracle")
    again = tmp_path / "again.safetensors"
    assert save_weights(again, weights) == weights.digest
    assert again.read_bytes() == file.read_bytes()
    loaded = load_weights(again, "oracle", "made-up")
    assert np.array_equal(weights.lines, loaded.lines)
    assert (weights.links, weights.context) == (loaded.links, loaded.context)
    for name, value in weights.params.items():
        assert np.array_equal(value, loaded.params[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "shardgym.simulator/9"}, "schema: these weights are of 'shardgym.simulator/9'"),
        ({"hardware": "h100"}, "hardware: these weights are of 'h100', expected 'made-up'"),
        ({"context": "asleep"}, "weights of another version"),
        ({"role": "judge"}, "role: these weights are of 'judge', expected 'oracle'"),
    ],
)
def test_weights_for_something_else_are_named(file, changes, message):
    edit_header(file, **changes)
    with pytest.raises(InputError, match=rf"oracle\.safetensors: {message}"):
        make_cost("simulator", weights=file, hardware="made-up")


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.1, 0.99])
def test_truncated_weights_are_named(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(InputError, match=r"oracle\.safetensors: damaged, or not written by"):
        make_cost("simulator", weights=file)


@pytest.mark.parametrize("name", ["compute.head.1.weight", "compute.fixed.prior", "density.centres", "step.lines"])
def test_what_is_missing_or_not_finite_is_named(file, name):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, file, metadata)
    with pytest.raises(InputError, match=f"tensor '{name}' holds numbers that are not finite"):
        make_cost("simulator", weights=file)
    del tensors[name]
    save_file(tensors, file, metadata)
    with pytest.raises(InputError, match=f"weights of another version .*{name.removeprefix('compute.')}"):
        make_cost("simulator", weights=file)
