"""Training steps of a plan under TorchRec's `DistributedModelParallel`, on the ranks of a job.

They train a user's own model, or only the embedding collections of a task, with ids drawn from the task's tables and
random gradients in place of a dense part.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ModuleSharder
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.errors import InputError, short_repr
from shardgym.machine import peak_memory, reset_peak_memory
from shardgym.tables.ids import draw_bags
from shardgym.tables.table import EmbeddingTable, Optimizer
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.model_tables import feature_names, model_from_task, model_tables, parameter_name, split_name
from shardgym.torchrec.phases import phases_ms, recorded, timed, values_of
from shardgym.torchrec.ranks import World

#: Number of batches that steps cycle through.
BATCHES = 3
#: Steps of a turn that are not timed, after a first one, and those that are.
WARM_UPS = 1
STEPS = 10
LEARNING_RATE = 0.01

#: As TorchRec attaches them to tables.
_OPTIMIZERS: dict[Optimizer, type[torch.optim.Optimizer]] = {
    "exact_sgd": torch.optim.SGD,
    "rowwise_adagrad": RowWiseAdagrad,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}

#: What the backward pass starts from: a loss, or outputs and their gradients.
Outputs = tuple[list[torch.Tensor], list[torch.Tensor] | None]


class Job(NamedTuple):
    """A model to train, as one rank sees it."""

    #: Task whose devices are the ranks.
    task: ShardingTask
    #: Makes the model with collections on the meta device.
    make_model: Callable[[], nn.Module]
    #: Batches of this rank, on its device.
    batches: Sequence[Any]
    #: Runs the forward pass of the sharded model on a batch.
    forward: Callable[[DistributedModelParallel, Any], Outputs]


class TurnOfRank(NamedTuple):
    """Measurements by one rank of some steps of a plan."""

    #: Time of each timed step, which all ranks began together.
    step_ms: list[float]
    #: Times in the order of `PHASES`, see `phases_ms`.
    phases_ms: list[float]
    #: Peak memory of the turn: torch's allocations on a GPU, the growth of the process on a CPU.
    peak_bytes: int


def sharders() -> list[ModuleSharder[Any]]:
    """Return the sharders of the collections that plans cover."""
    return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]


def samples_of_rank(task: ShardingTask) -> int:
    """Return the samples of a rank's batch; raises `InputError` if ranks cannot share the batch evenly."""
    samples, rest = divmod(task.batch_size, task.num_devices)
    if rest:
        raise InputError(
            f"the task has a batch of {task.batch_size} samples, which {task.num_devices} ranks cannot share evenly: "
            "give a task whose batch_size is a multiple of the ranks"
        )
    return samples


def job_of_collections(task: ShardingTask, world: World, seed: int) -> Job:
    """Return a job that trains only the tables of a task, each rank on ids of its own.

    Args:
        task: the task, with one device per rank.
        world: the ranks of the job.
        seed: seed of ids and gradients.

    Raises:
        InputError: the task cannot be a model, ranks cannot share its batch, or recorded ids are not found.
    """
    samples = samples_of_rank(task)
    members: dict[str, list[EmbeddingTable]] = {}
    for table in task.tables:
        members.setdefault(split_name(table.name)[0], []).append(table)
    numbers = range(world.rank, BATCHES * world.size, world.size)
    batches = [
        {path: _drawn(tables, samples, seed, number).to(world.device) for path, tables in members.items()}
        for number in numbers
    ]
    generator = torch.Generator().manual_seed(seed)

    @functools.cache
    def gradient(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(world.device)

    def forward(sharded: DistributedModelParallel, batch: dict[str, KeyedJaggedTensor]) -> Outputs:
        # All collections begin before the first one is waited for.
        begun = [sharded.module.get_submodule(path)(ids) for path, ids in batch.items()]
        outputs = [values for found in begun for values in values_of(found)]
        return outputs, [gradient(output.shape) for output in outputs]

    return Job(task, lambda: _collections(task), batches, forward)


def job_of_model(
    task: ShardingTask,
    world: World,
    make_model: Callable[[], nn.Module],
    make_batches: Callable[[int, int], Iterable[Any]],
) -> Job:
    """Return a job that trains a user's model on their own batches.

    The model takes a batch and returns the loss, or a tuple that begins with it. Tables have their attached optimisers,
    or TorchRec's; SGD trains everything else.

    Args:
        task: task of the model, with one device per rank.
        world: the ranks of the job.
        make_model: makes the model, with collections on the meta device and weights of everything else.
        make_batches: takes the rank and the number of ranks, and returns the rank's batches. The first `BATCHES` are
            used, moved to the rank's device if they have a method `to`.

    Raises:
        InputError: there is no batch, or a collection already has weights.
    """
    model = make_model()
    for table in model_tables(model):
        if not model.get_submodule(table.path).get_parameter(table.parameter).is_meta:
            raise InputError(
                f"table '{table.name}' of the model has its weights on every rank: give its collection "
                "device=torch.device('meta'), so that TorchRec makes only the shards of each rank"
            )
    batches = list(itertools.islice(make_batches(world.rank, world.size), BATCHES))
    if not batches:
        raise InputError(f"rank {world.rank} has no batches: expected at least one")

    def forward(sharded: DistributedModelParallel, batch: Any) -> Outputs:
        answer = sharded(batch)
        loss = answer[0] if isinstance(answer, tuple) and answer else answer
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise InputError(f"model(batch) returned {short_repr(answer)}: expected the loss, or a tuple with it first")
        return [loss], None

    return Job(task, make_model, [b.to(world.device) if hasattr(b, "to") else b for b in batches], forward)


def run_turn(job: Job, plan: TorchRecPlan, world: World) -> TurnOfRank:
    """Shard the model and train it for some steps; all ranks call this together."""
    before = _reset_peak(world.device)
    torch.manual_seed(0)
    sharded = DistributedModelParallel(job.make_model(), device=world.device, plan=plan, sharders=sharders())
    own = [parameter for _, parameter in in_backward_optimizer_filter(sharded.named_parameters())]
    optimizer = torch.optim.SGD(own, lr=LEARNING_RATE) if own else None

    def train(batch: Any) -> None:
        if optimizer is not None:
            optimizer.zero_grad()
        torch.autograd.backward(*job.forward(sharded, batch))
        if optimizer is not None:
            optimizer.step()

    with recorded(sharded) as calls:
        train(job.batches[0])
    on_gpu = world.device.type == "cuda"
    step_ms = []
    for step in range(-WARM_UPS, STEPS):
        _, ms = timed(functools.partial(train, job.batches[step % len(job.batches)]), world.device)
        if step >= 0:
            step_ms.append(ms)
    taken = (torch.cuda.max_memory_allocated() if on_gpu else peak_memory()) - before
    return TurnOfRank(step_ms, phases_ms(calls, world.device, LEARNING_RATE), taken)


def _reset_peak(device: torch.device) -> int:
    """Reset the peak of memory, and return the bytes in use before the turn."""
    gc.collect()
    if device.type == "cpu":
        # What an earlier turn has freed goes back to the system, or this one would seem to need less.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
        return reset_peak_memory()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return 0


def _collections(task: ShardingTask) -> nn.Module:
    """Return a model of the tables of a task, each with its optimiser attached."""
    model = model_from_task(task)
    for table in task.tables:
        path, name = split_name(table.name)
        weight = model.get_submodule(path).get_parameter(parameter_name(name, table.pooling))
        apply_optimizer_in_backward(_OPTIMIZERS[task.optimizer_of(table)], [weight], {"lr": LEARNING_RATE})
    return model


def _drawn(tables: list[EmbeddingTable], samples: int, seed: int, number: int) -> KeyedJaggedTensor:
    """Return a collection's ids in one batch of a rank; a table's features share its ids."""
    drawn = {}
    for table in tables:
        features = feature_names(table)
        for feature in features:
            part = dataclasses.replace(table, name=feature, pooling_factor=table.pooling_factor / len(features))
            drawn[feature] = draw_bags(part, samples, seed=seed, batch=number)
    ids = torch.from_numpy(np.concatenate([bags.indices for bags in drawn.values()]))
    lengths = torch.from_numpy(np.concatenate([bags.lengths for bags in drawn.values()]))
    weights = torch.rand(len(ids), generator=torch.Generator().manual_seed(seed)) if tables[0].weighted else None
    return KeyedJaggedTensor.from_lengths_sync(list(drawn), ids, lengths, weights)
