"""Lookups of one rank in complete steps: an operator, and where the columns that it pools go.

FBGEMM's fused operator updates weights in its backward pass. Replicas need the gradients of all devices before that, so
they have FBGEMM's dense operator, as in TorchRec, and an optimiser of torch's kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.operator import EPSILON, LEARNING_RATE, WEIGHT, Ids, TableIds, build_operator
from shardgym.costs.fbgemm.step_plan import Part
from shardgym.tables.table import Optimizer


class Lookup:
    """Pools the shards of one way of exchange on one rank; those that overlap in `sums` are added up.

    Pooled values have the type `dtype`. A dense operator leaves gradients to an optimiser.
    """

    def __init__(self, sums: Part, dtype: torch.dtype, *, dense: bool = False) -> None:
        held = sums.shards
        #: Columns of what is pooled.
        self.width = sums.width
        #: Whose ids are looked up.
        self.num_shards = 0 if held is None else len(held.shards)
        #: Of FBGEMM; None where the rank has no shard, and pools zeros.
        self.operator: Any = None
        self._dtype = dtype
        widths = [] if held is None else [shard.width for shard in held.shards]
        self._places = [slice(begin, begin + width) for begin, width in zip(sums.begins, widths, strict=True)]
        # Then the operator writes what is exchanged.
        self._as_pooled = list(sums.begins) == [0, *itertools.accumulate(widths)][:-1] and sum(widths) == sums.width
        if held is not None:
            self.operator = _dense_operator(held) if dense else build_operator(held, bounds_check=True)
        self._pooled: Any = None

    @classmethod
    def of(cls, held: ShardSet | None, dtype: torch.dtype) -> Lookup:
        """Return a lookup of shards that are pooled side by side, in their order."""
        widths = [] if held is None else [shard.width for shard in held.shards]
        *begins, width = itertools.accumulate(widths, initial=0)
        return cls(Part(held, tuple(begins), width), dtype)

    def pool(self, ids: Ids | None, samples: int) -> torch.Tensor:
        """Return pooled values or partial sums of so many samples, shape (samples, width)."""
        if self.operator is None or ids is None:
            return torch.zeros(samples, self.width, dtype=self._dtype)
        self._pooled = self.operator(ids.indices, ids.offsets)
        pooled: torch.Tensor = self._pooled.detach().to(self._dtype)
        if self._as_pooled:
            return pooled
        sums = torch.zeros(samples, self.width, dtype=self._dtype)
        widths = [place.stop - place.start for place in self._places]
        for place, part in zip(self._places, torch.split(pooled, widths, dim=1), strict=True):
            sums[:, place] += part
        return sums

    def backward(self, gradient: torch.Tensor) -> None:
        """Update weights, or keep the gradient of a dense operator's weights."""
        if self.operator is None:
            return
        if not self._as_pooled:
            gradient = torch.cat([gradient[:, place] for place in self._places], dim=1)
        self._pooled.backward(gradient.to(self._pooled.dtype))
        self._pooled = None


def _dense_operator(held: ShardSet) -> Any:
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen

    precision = SparseType.FP16 if held.precision == "fp16" else SparseType.FP32
    operator = DenseTableBatchedEmbeddingBagsCodegen(
        [(shard.num_rows, shard.width) for shard in held.shards],
        weights_precision=precision,
        output_dtype=precision,
        use_cpu=torch.get_default_device().type == "cpu",
    )
    for weights in operator.split_embedding_weights():
        weights.fill_(WEIGHT)
    return operator


class RowwiseAdagrad:
    """Adagrad with one state per row, the mean of its squared gradients, as FBGEMM and TorchRec have it.

    Weights are of all tables, one after the other, shape (n,); shapes are rows and columns of each.
    """

    def __init__(self, weights: torch.nn.Parameter, shapes: list[tuple[int, int]]) -> None:
        self._weights = weights
        self._shapes = shapes
        self._states = [torch.zeros(rows, 1) for rows, _ in shapes]

    @torch.no_grad()
    def step(self) -> None:
        """Update."""
        gradients = self._weights.grad
        assert gradients is not None  # `Lookup.backward` came first
        sizes = [rows * columns for rows, columns in self._shapes]
        parts = zip(
            torch.split(self._weights, sizes), torch.split(gradients, sizes), self._shapes, self._states, strict=True
        )
        for weights, gradient, shape, state in parts:
            of_rows = gradient.view(shape)
            state += of_rows.float().square().mean(dim=1, keepdim=True)
            weights.view(shape).addcdiv_(of_rows, state.sqrt().add_(EPSILON).to(of_rows.dtype), value=-LEARNING_RATE)


def dense_optimizer(operator: Any, optimizer: Optimizer) -> RowwiseAdagrad | torch.optim.Optimizer:
    """Return the optimiser of a dense operator's weights, which does the same as the fused one."""
    if optimizer == "rowwise_adagrad":
        return RowwiseAdagrad(operator.weights, operator.embedding_specs)
    if optimizer == "exact_sgd":
        return torch.optim.SGD([operator.weights], lr=LEARNING_RATE)
    kind = torch.optim.Adagrad if optimizer == "adagrad" else torch.optim.Adam
    return kind([operator.weights], lr=LEARNING_RATE, eps=EPSILON)


def own_ids(of_shards: Sequence[TableIds]) -> Ids:
    """Return what a rank's own samples look up in each shard as an operator takes it."""
    lengths = torch.cat([ids.lengths for ids in of_shards])
    indices = torch.cat([ids.indices for ids in of_shards])
    return Ids(indices, torch.ops.fbgemm.asynchronous_complete_cumsum(lengths))
