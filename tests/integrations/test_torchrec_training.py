"""Plans under DistributedModelParallel: what sharded and unsharded collections compute and learn is the same."""

import dataclasses
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torch.distributed.tensor import DTensor
from torchrec.distributed import comm
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec_toys import MARKS, Pieces, collection, config, run_ranks, sample, topology

from shardgym import InputError, ShardingPlan
from shardgym.torchrec import from_torchrec, task_from_model, to_torchrec

pytestmark = MARKS

SAMPLES = 6
STEPS = 2
LEARNING_RATE = 0.1
#: Ranks of one machine, as LOCAL_WORLD_SIZE tells TorchRec.
PER_HOST = 2

#: name -> rows, width.
TABLES = {"a": (40, 64), "b": (30, 16), "c": (21, 32), "d": (10, 8)}


PIECES = Pieces("bags", TABLES)
columns, rows, whole, everywhere = PIECES.columns, PIECES.rows, PIECES.whole, PIECES.everywhere

TW, CW, RW, TWRW = "table_wise", "column_wise", "row_wise", "table_row_wise"
TWCW, GRID, DP = "table_column_wise", "grid_shard", "data_parallel"

#: By the number of ranks and what is special: a plan, and the types of tables a to d when it leaves.
PLANS = {
    (2, "a rank without tables"): (whole(a=1, b=1, c=1, d=1), (TW, TW, TW, TW)),
    (2, "even columns"): (
        [*columns("a", (0, 32, 0), (32, 64, 1)), *columns("b", (0, 8, 1), (8, 16, 0)), *whole(c=0, d=1)],
        (CW, CW, CW, CW),
    ),
    (2, "uneven columns, several on a rank"): (
        [*columns("a", (0, 12, 1), (12, 60, 0), (60, 64, 1)), *columns("c", (0, 4, 0), (4, 32, 0)), *whole(b=1, d=0)],
        (CW, CW, CW, CW),
    ),
    (2, "rows"): ([*rows("a", (20, 40)), *rows("c", (11, 21)), *whole(b=1, d=0)], (RW, TW, RW, TW)),
    (2, "grid"): (
        [*rows("a", (20, 40), 0, (0, 24)), *rows("a", (20, 40), 0, (24, 64)), *rows("c", (11, 21)), *whole(b=1, d=0)],
        (GRID, TW, GRID, TW),
    ),
    (2, "replicas"): ([*everywhere(2, "b", "d"), *whole(a=0, c=1)], (TW, DP, TW, DP)),
    (2, "everything"): (
        [*rows("a", (20, 40)), *columns("c", (0, 20, 1), (20, 32, 0)), *whole(b=0), *everywhere(2, "d")],
        (RW, CW, CW, DP),
    ),
    (4, "columns of one host"): (
        [*columns("a", (0, 40, 3), (40, 64, 2)), *columns("c", (0, 16, 0), (16, 32, 1)), *whole(b=0, d=3)],
        (TWCW, TWCW, TWCW, TWCW),
    ),
    (4, "rows of one host"): (
        [*rows("a", (20, 40), 2), *rows("c", (11, 21)), *whole(b=1, d=3)], (TWRW, TW, TWRW, TW),
    ),
    (4, "grid"): (
        [
            *rows("a", (20, 40), 2, (0, 24)), *rows("a", (20, 40), 0, (24, 48)), *rows("a", (20, 40), 2, (48, 64)),
            *rows("c", (11, 21), 2), *whole(b=1, d=3),
        ],
        (GRID, TW, GRID, TW),
    ),
    (4, "everything"): (
        [
            *rows("a", (20, 40), 0, (0, 24)), *rows("a", (20, 40), 2, (24, 64)), *rows("b", (8, 16, 24, 30)),
            *columns("c", (0, 20, 1), (20, 32, 2)), *everywhere(4, "d"),
        ],
        (GRID, RW, CW, DP),
    ),
}  # fmt: skip


class Differences(NamedTuple):
    """Largest differences from the unsharded collection, and operators: one for each type and rank."""

    output: float
    loss: float
    weights: float
    operators: int


class Kind(NamedTuple):
    """What `train` has to know of a kind of collections."""

    #: Makes a model with one collection, on a device.
    make: Callable[[str], nn.Module]
    #: Calls the collection with ids, for one tensor.
    outputs: Callable[[Any, KeyedJaggedTensor], torch.Tensor]
    sample: Callable[[int, int], KeyedJaggedTensor]
    loss: Callable[[torch.Tensor], torch.Tensor]
    sharder: Callable[..., Any]


def make_model(device, mean=""):
    """Make a model whose tables are added up, apart from those in `mean`."""
    model = nn.Module()
    configs = [
        config(name, *shape, pooling=PoolingType.MEAN if name in mean else PoolingType.SUM)
        for name, shape in TABLES.items()
    ]
    model.bags = collection(*configs, device=device)
    return model


def outputs(bags, ids):
    """Pooled values in the order of `TABLES`; sharded collections order their keys by placement."""
    found = bags(ids).to_dict()
    return torch.cat([found[f"{name}_ids"] for name in TABLES], dim=1)


def loss_of(values):
    return (values * torch.arange(values.shape[1]) / values.shape[1] + values**2).mean(dim=0).sum()


IDS = functools.partial(sample, {f"{name}_ids": rows for name, (rows, _) in TABLES.items()}, SAMPLES)
POOLED_BY_SUM = Kind(make_model, outputs, IDS, loss_of, EmbeddingBagCollectionSharder)


def train(rank, size, plan, kind=POOLED_BY_SUM):
    torch.manual_seed(0)
    ((path, module),) = plan.plan.items()
    reference = kind.make("cpu").get_submodule(path)
    weights = {key.split(".")[-2]: weight for key, weight in reference.named_parameters()}
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    sharder = kind.sharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE})
    types = {name: sharding.sharding_type for name, sharding in module.items()}
    model = DistributedModelParallel(kind.make("meta"), device=torch.device("cpu"), plan=plan, sharders=[sharder])
    pieces = list(held_weights(model, types))
    for name, (row, column), tensor in pieces:
        tensor.copy_(before[name][row : row + tensor.shape[0], column : column + tensor.shape[1]])
    copies = [parameter for key, parameter in model.named_parameters() if types[key.split(".")[-2]] == DP]
    optimizers = [
        torch.optim.SGD(parameters, LEARNING_RATE) for parameters in (copies, [*reference.parameters()]) if parameters
    ]
    output_error = loss_error = 0.0
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        values = kind.outputs(model.module.get_submodule(path), kind.sample(rank, step))
        expected = [kind.outputs(reference, kind.sample(r, step)) for r in range(size)]
        losses = [kind.loss(of_rank) for of_rank in expected]
        output_error = max(output_error, float((values - expected[rank]).detach().abs().max()))
        loss = kind.loss(values)
        loss_error = max(loss_error, abs(float(loss.detach() - losses[rank].detach())))
        loss.backward()  # the fused optimizer updates the weights, too
        (torch.stack(losses).sum() / size).backward()
        for optimizer in optimizers:
            optimizer.step()
    weight_error = 0.0
    for name, (row, column), tensor in pieces:
        updated = weights[name].detach()
        assert float((updated - before[name]).abs().max()) > 0.01
        change = updated[row : row + tensor.shape[0], column : column + tensor.shape[1]] - tensor
        weight_error = max(weight_error, float(change.abs().max()))
    operators = len(model.module.get_submodule(path)._lookups)
    return Differences(output_error, loss_error, weight_error, operators)


def held_weights(model, types):
    """Yield table, first row and column, and weights of each piece on this rank."""
    for key, tensor in model.state_dict().items():
        name = key.split(".")[-2]
        if types[name] == DP:
            yield name, (0, 0), tensor
            continue
        if isinstance(tensor, DTensor):
            local = tensor.to_local()
            # Without a shard here it has no tensor, but an offset.
            for offsets, piece in zip(local.local_offsets(), local.local_shards(), strict=False):
                yield name, tuple(offsets), piece
            continue
        for shard in tensor.local_shards():
            yield name, tuple(shard.metadata.shard_offsets), shard.tensor


def task_of(size, host_size=None):
    hosts = dataclasses.replace(topology(size), fast_domain_size=PER_HOST, host_size=host_size)
    return task_from_model(make_model("meta"), hosts, SAMPLES * size, optimizer="exact_sgd")


def run(size, function, **environment):
    """Return what each rank returns, in hosts of two ranks unless the environment says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LOCAL_WORLD_SIZE": str(PER_HOST), **environment}.items():
            patch.setenv(name, value)
        answers = run_ranks(size, function)
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if errors:
        raise ExceptionGroup("ranks failed", errors)
    return answers


def train_all(size, jobs, **environment):
    """Run `train`, of which the jobs are, in one start of the processes; the largest differences of all ranks."""
    answers = run(size, lambda rank: {key: job(rank, size) for key, job in jobs.items()}, **environment)
    return {key: Differences(*map(max, zip(*(answer[key] for answer in answers), strict=True))) for key in jobs}


def exported_for_cpus(task, plan, model=None):
    return to_torchrec(plan, task, model or make_model("meta"), device_type="cpu")


@pytest.mark.parametrize(("size", "name"), PLANS)
def test_tables_of_a_collection_get_as_few_types_as_can_be(size, name):
    shards, types = PLANS[size, name]
    task = task_of(size)
    plan = ShardingPlan.of(task, shards)
    exported = exported_for_cpus(task, plan)
    assert tuple(sharding.sharding_type for sharding in exported.plan["bags"].values()) == types
    if "several on a rank" not in name:  # their pieces are joined
        assert from_torchrec(exported, task) == plan


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_losses_outputs_and_weights_equal_the_unsharded_ones(size):
    """Of plans as they leave, and with rows of the only host called `table_row_wise`, as TorchRec's planner does."""
    task = task_of(size)
    named = {name: shards for (ranks, name), (shards, _) in PLANS.items() if ranks == size}
    plans = {name: exported_for_cpus(task, ShardingPlan.of(task, shards)) for name, shards in named.items()}
    expected = {name: len(set(types)) for (ranks, name), (_, types) in PLANS.items() if ranks == size}
    if size == PER_HOST:
        theirs = exported_for_cpus(task, ShardingPlan.of(task, named["rows"]))
        for name in "ac":
            theirs.plan["bags"][name].sharding_type = TWRW
        assert from_torchrec(theirs, task) == ShardingPlan.of(task, named["rows"])
        plans["rows called otherwise"] = theirs
        expected["rows called otherwise"] = 2
    found = train_all(size, {name: functools.partial(train, plan=plan) for name, plan in plans.items()})
    assert {name: of.operators for name, of in found.items() if max(of[:3]) < 1e-5} == expected


@pytest.mark.slow
def test_rows_are_cut_over_several_hosts_of_a_fast_domain(caplog):
    """Hosts of one rank, two in a domain, as in racks of many small hosts."""
    task = task_of(4, host_size=1)
    exported = exported_for_cpus(task, ShardingPlan.of(task, PLANS[4, "grid"][0]))
    assert caplog.messages == [
        "rows are cut over 2 ranks, 2 hosts: the job must set the environment variable TORCHREC_RESOLVED_POD_SIZE=2, "
        "TOPOLOGY_DOMAIN_MULTIPLE for TorchRec 1.6 and 1.7; earlier ones have no such domains"
    ]
    if not hasattr(comm, "get_topology_domain_multiple"):
        pytest.skip("TorchRec before 1.6 has no domains of several hosts")
    environment = {"LOCAL_WORLD_SIZE": "1", "TORCHREC_RESOLVED_POD_SIZE": "2", "TOPOLOGY_DOMAIN_MULTIPLE": "2"}
    found = train_all(4, {"grid": functools.partial(train, plan=exported)}, **environment)
    assert max(found["grid"][:3]) < 1e-5


#: Mean-pooled tables next to a plan, and whether TorchRec pools them rightly. Tables a and c of "rows" are cut.
POOLED = {
    ("rows", "bd"): True,
    ("rows", "c"): False,
    ("grid", "b"): True,
    ("grid", "a"): False,
    ("replicas", "abcd"): True,
    ("all by rows", "ab"): True,
}


def test_mean_pooled_tables_are_refused_where_torchrec_pools_them_wrongly():
    task = task_of(2)
    by_rows = [shard for table, (n, _) in TABLES.items() for shard in rows(table, (-(-n // 2), n))]
    plans = {name: ShardingPlan.of(task, by_rows if name == "all by rows" else PLANS[2, name][0]) for name, _ in POOLED}
    # Without a model nobody knows how it pools.
    exported = {name: to_torchrec(plan, task, device_type="cpu") for name, plan in plans.items()}
    jobs = {}
    for name, mean in POOLED:
        kind = POOLED_BY_SUM._replace(make=functools.partial(make_model, mean=mean))
        jobs[name, mean] = functools.partial(train, plan=exported[name], kind=kind)
    found = train_all(2, jobs)
    for (name, mean), is_right in POOLED.items():
        model = make_model("meta", mean)
        if is_right:
            assert max(found[name, mean][:3]) < 1e-5
            assert exported_for_cpus(task, plans[name], model).plan == exported[name].plan
        else:
            assert found[name, mean].loss > 1e-3
            with pytest.raises(InputError, match=f"mean-pooled table 'bags.{mean}' of collection 'bags' is "):
                exported_for_cpus(task, plans[name], model)


@pytest.mark.repository
@pytest.mark.slow
@pytest.mark.parametrize("planner", ["torchrec", "shardgym"])
def test_the_example_trains_under_the_plan_of_either_planner(planner):
    example = Path(__file__).parents[2] / "examples" / "torchrec_dlrm.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", example, "--steps", "2"]
    done = subprocess.run([*command, "--planner", planner], capture_output=True, text=True, check=True, timeout=240)
    losses = re.findall(r"^step \d: loss (.+)$", done.stdout, re.MULTILINE)
    assert len(losses) == 2
    assert all(0.3 < float(loss) < 1.0 for loss in losses)
