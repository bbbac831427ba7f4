"""The operator for a GPU, built on tensors that have a device and a shape but no values."""

import importlib.util

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardgym.costs.fbgemm.backend import OPTIMIZERS, build_operator
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.table import EmbeddingTable

pytestmark = [
    pytest.mark.measured,
    pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu' or 'gpu'"),
]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_has_all_weights_and_states_on_the_gpu(optimizer, precision):
    pieces = tuple(ShardSpec(EmbeddingTable(f"t{n}", 100 + n, 32), (0, 100 + n), 8 * (n + 1)) for n in range(3))
    content = ShardSet(pieces, 64, precision, optimizer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        operator = build_operator(content, torch.device("cuda", 0))
    states = [getattr(operator, name).numel() for name in ("momentum1_dev", "momentum2_dev") if hasattr(operator, name)]
    assert (operator.weights_dev.device.type, operator.weights_dev.numel()) == ("cuda", content.num_weights)
    assert operator.weights_dev.dtype == (torch.float16 if precision == "fp16" else torch.float32)
    assert sum(count for count in states if count > 1) == content.num_states  # a place-holder has one element
