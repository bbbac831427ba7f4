"""Steps of real ranks give the outputs and the weights of the same tables on one device, however they are sharded."""

from typing import NamedTuple

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.fbgemm.workers import PRELOADED
from shardgym.costs.links import samples_per_device

pytestmark = pytest.mark.measured

#: Unpooled, the first two of one width.
U, V, W = (
    EmbeddingTable("u", 50, 8, 3.0, pooling="none"), EmbeddingTable("v", 25, 8, 1.0, pooling="none"),
    EmbeddingTable("w", 15, 12, 2.0, pooling="none", num_features=2),
)  # fmt: skip
A, B, C, D = (
    EmbeddingTable("a", 40, 8, 2.0), EmbeddingTable("b", 30, 4, 2.0), EmbeddingTable("c", 20, 12, 2.0),
    EmbeddingTable("d", 10, 4, 2.0),
)  # fmt: skip
ALL = (0, 1, 2, 3)
STEPS = 2
DEVICES = 4
RATE = EPSILON = 0.01


class Case(NamedTuple):
    """A plan, and which columns of which tables each sample gets, in order."""

    shards: tuple[Shard, ...]
    columns: tuple[tuple[str, int, int], ...]
    batch_size: int = 9
    optimizer: str = "exact_sgd"
    precision: str = "fp32"

    def task(self):
        tables = [table for table in (A, B, C, D, U, V, W) if table.name in {shard.table for shard in self.shards}]
        topology = Topology(num_devices=DEVICES, memory_bytes=2**30, fast_domain_size=2)
        return ShardingTask(
            tuple(tables), topology, self.batch_size, optimizer=self.optimizer, precision=self.precision
        )  # fmt: skip

    def step_plan(self):
        task = self.task()
        plan = ShardingPlan.of(task, self.shards)
        plan.validate(task)
        return StepPlan.of(task, plan)


def row_wise(table, *cuts):
    """Cut a table at rows; devices that are None have none."""
    ends = [0, *(end for _, end in cuts)]
    rows = zip(ends, ends[1:], cuts, strict=False)
    return tuple(Shard(table.name, (low, high), (0, table.embedding_dim), device) for low, high, (device, _) in rows)


# Devices 1 and 2 have no rows of both tables, and device 2 has none at all.
ROWS = (*row_wise(A, (0, 13), (1, 20), (3, 40)), *row_wise(B, (0, 5), (3, 30)))
ROWS_OUT = (("a", 0, 8), ("b", 0, 4))
# Domain 0 has devices 0 and 1.
IN_DOMAINS = (*row_wise(A, (2, 13), (3, 40)), *row_wise(B, (0, 5), (1, 30)), *row_wise(D, (3, 2), (2, 10)))
IN_DOMAINS_OUT = (("b", 0, 4), ("a", 0, 8), ("d", 0, 4))
COLUMNS = (Shard("c", (0, 20), (4, 12), 0), Shard("c", (0, 20), (0, 4), 2), Shard.whole(D, 2))
COLUMNS_OUT = (("c", 4, 12), ("c", 0, 4), ("d", 0, 4))
GRID = (
    Shard("c", (0, 7), (0, 4), 0), Shard("c", (7, 20), (0, 4), 1), Shard("c", (0, 9), (4, 12), 3),
    Shard("c", (9, 20), (4, 12), 2),
)  # fmt: skip
PATCHWORK = (
    Shard("c", (0, 7), (0, 12), 0), Shard("c", (7, 20), (0, 4), 0), Shard("c", (7, 20), (4, 8), 3),
    Shard("c", (7, 20), (8, 12), 2),
)  # fmt: skip
REPLICAS = (Shard.whole(C, *ALL), Shard.whole(D, *ALL))
MIX = (Shard.whole(B, 2), *row_wise(A, (0, 13), (2, 40)), *GRID, Shard.whole(D, *ALL))
MIX_OUT = (("b", 0, 4), ("a", 0, 8), ("c", 0, 4), ("c", 4, 12), ("d", 0, 4))

CASES = {
    "table-wise": Case(
        (Shard.whole(A, 1), Shard.whole(B, 3), Shard.whole(D, 1)), (("a", 0, 8), ("d", 0, 4), ("b", 0, 4))
    ),
    "column-wise": Case(COLUMNS, COLUMNS_OUT),
    "row-wise": Case(ROWS, ROWS_OUT),
    "row-wise, equal shares": Case(ROWS, ROWS_OUT, batch_size=8),
    "row-wise, rowwise_adagrad": Case(ROWS, ROWS_OUT, optimizer="rowwise_adagrad"),
    "table-row-wise": Case(IN_DOMAINS, IN_DOMAINS_OUT),
    "table-row-wise, equal shares": Case(IN_DOMAINS, IN_DOMAINS_OUT, batch_size=12),
    "grid": Case(GRID, (("c", 0, 4), ("c", 4, 12))),
    "patchwork of rows and columns": Case(PATCHWORK, (("c", 0, 12),)),
    "data-parallel": Case(REPLICAS, (("c", 0, 12), ("d", 0, 4))),
    "data-parallel, rowwise_adagrad": Case(REPLICAS[:1], (("c", 0, 12),), optimizer="rowwise_adagrad"),
    "data-parallel, adam": Case(REPLICAS[:1], (("c", 0, 12),), optimizer="adam"),
    "unpooled, whole": Case((Shard.whole(U, 1), Shard.whole(V, 3), Shard.whole(W, 1)), ()),
    "unpooled, columns": Case(
        (Shard("u", (0, 50), (0, 4), 2), Shard("u", (0, 50), (4, 8), 0), Shard("w", (0, 15), (4, 12), 2),
         Shard("w", (0, 15), (0, 4), 2)), (),
    ),
    "unpooled, rows": Case((*row_wise(U, (0, 13), (1, 20), (3, 50)), *row_wise(V, (3, 5), (0, 25))), ()),
    "unpooled, rowwise_adagrad": Case(row_wise(U, (0, 13), (1, 20), (3, 50)), (), optimizer="rowwise_adagrad"),
    "unpooled, mix": Case(
        (*row_wise(U, (0, 13), (1, 20), (3, 50)), Shard("w", (0, 15), (0, 4), 2), Shard("w", (0, 15), (4, 12), 0),
         Shard.whole(V, 2), Shard.whole(B, 2), *row_wise(A, (0, 13), (2, 40)), Shard.whole(D, *ALL)),
        (("b", 0, 4), ("a", 0, 8), ("d", 0, 4)),
    ),
    "mix": Case(MIX, MIX_OUT, optimizer="adagrad"),
    "mix, fp16": Case(MIX, MIX_OUT, precision="fp16"),
}  # fmt: skip


def first_weights(table):
    import torch

    generator = torch.Generator().manual_seed(table.num_embeddings)
    return torch.rand(table.num_embeddings, table.embedding_dim, generator=generator) - 0.5


def bags(table, batch_size, step):
    """Ids and lengths of all samples; some bags are empty, some hold an id twice."""
    import torch

    generator = torch.Generator().manual_seed(1000 * step + table.num_embeddings)
    lengths = torch.randint(0, 5, (batch_size,), generator=generator)
    return torch.randint(0, table.num_embeddings, (int(lengths.sum()),), generator=generator), lengths


class NoClock:
    """Counts exchanges."""

    def __init__(self):
        self.exchanges = []

    def work(self, part):
        """Take no time."""

    def exchange(self, part, run, sent_bytes, group=None):
        self.exchanges.append(part)
        run()


def rank(number, names, folder):
    """Run the steps of all cases on one rank, and save what it pooled and holds."""
    import torch
    import torch.distributed as dist

    from shardgym.costs.fbgemm.plan_on_rank import Domains, PlanOnRank

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=DEVICES)
    domains = Domains.join(2)
    for place, name in enumerate(names):
        case = CASES[name]
        task = case.task()
        step_plan = case.step_plan()
        samples = samples_per_device(case.batch_size, DEVICES).tolist()
        plan = PlanOnRank(step_plan, samples, number, domains)
        plan.gradient_like = lambda outputs: outputs
        own = slice(sum(samples[:number]), sum(samples[: number + 1]))
        held = list(step_plan.exchanged(number)), list(step_plan.replicated())
        unpooled = plan.unpooled.lookups
        lookups = [plan.whole, plan.rows, plan.domain_rows, *unpooled, plan.replicas]
        lookups = [lookup for lookup in lookups if lookup is not None]
        operators = [lookup.operator for lookup in lookups if lookup.operator is not None]
        places = []
        for operator, shard_set in zip(operators, held[0] + held[1], strict=True):
            for weights, spec in zip(operator.split_embedding_weights(), shard_set.shards, strict=True):
                (shard,) = (
                    s for s in ShardingPlan.of(task, case.shards).shards
                    if (s.table, s.rows, s.num_columns) == (spec.table.name, spec.rows, spec.width)
                    and number in s.devices
                )  # fmt: skip
                weights.copy_(first_weights(spec.table)[slice(*shard.rows), slice(*shard.columns)])
                places.append((shard, weights))
        outputs = []
        clock = NoClock()
        for step in range(STEPS):
            outputs.append(plan.step(features_of(step_plan, task, case, own, step), clock)._asdict())
        weights = [(shard.table, shard.rows, shard.columns, weights.clone()) for shard, weights in places]
        torch.save((outputs, weights, clock.exchanges), f"{folder}/{place}-{number}.pt")
    dist.barrier()
    dist.destroy_process_group()


def features_of(step_plan, task, case, own, step):
    from shardgym.costs.fbgemm.operator import TableIds, cut_rows
    from shardgym.costs.fbgemm.plan_on_rank import Features

    def own_ids(table):
        indices, lengths = bags(table, case.batch_size, step)
        ends = np.cumsum([0, *lengths.tolist()])
        return TableIds(indices[ends[own.start] : ends[own.stop]], lengths[own])

    def of(shard_set):
        return [cut_rows(own_ids(spec.table), spec) for spec in shard_set.shards]

    unpooled = {table.name: own_ids(table).indices for table in step_plan.unpooled_tables}
    exchanged = [[ids for held in step_plan.exchanged(d) for ids in of(held)] for d in range(DEVICES)]
    return Features(exchanged, [ids for held in step_plan.replicated() for ids in of(held)], unpooled)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run all cases in the same processes."""
    import torch

    folder = tmp_path_factory.mktemp("ranks")
    names = list(CASES)
    torch.multiprocessing.set_forkserver_preload([PRELOADED])
    torch.multiprocessing.start_processes(rank, (names, str(folder)), DEVICES, start_method="forkserver")
    return {
        name: [torch.load(folder / f"{place}-{number}.pt") for number in range(DEVICES)]
        for place, name in enumerate(names)
    }


def reference(case):
    """Return outputs of each step and final weights of one device with all tables, as double precision has them."""
    import torch

    weights = {table.name: first_weights(table).double() for table in case.task().tables}
    states = {name: torch.zeros_like(of_table) for name, of_table in weights.items()}
    moments = {}
    outputs = []
    for step in range(STEPS):
        of_step = {}
        for table in case.task().tables:
            indices, lengths = bags(table, case.batch_size, step)
            if table.is_pooled:
                bag = torch.nn.EmbeddingBag.from_pretrained(weights[table.name], freeze=False, mode="sum")
                pooled = bag(indices, torch.cumsum(lengths, 0) - lengths)
            else:
                bag = torch.nn.Embedding.from_pretrained(weights[table.name], freeze=False)
                pooled = bag(indices)
            pooled.backward(pooled.detach())  # its own gradient, as in steps
            gradient = bag.weight.grad
            state = states[table.name]
            if case.optimizer == "exact_sgd":
                update = gradient
            elif case.optimizer == "adam":
                first, second = moments.setdefault(table.name, [0.0, 0.0])
                first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
                moments[table.name] = [first, second]
                corrected = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
                update = corrected[0] / (corrected[1].sqrt() + EPSILON)
            else:
                squares = gradient**2
                state += squares if case.optimizer == "adagrad" else squares.mean(dim=1, keepdim=True)
                update = gradient / (state.sqrt() + EPSILON)
            of_step[table.name] = pooled.detach()
            weights[table.name] = weights[table.name] - RATE * update
        outputs.append(of_step)
    return outputs, weights


@pytest.mark.parametrize("name", CASES)
def test_a_step_computes_what_one_device_with_all_tables_does(name, results):
    case = CASES[name]
    tolerance = {"rtol": 0.01, "atol": 0.02} if case.precision == "fp16" else {"rtol": 1e-5, "atol": 1e-5}
    outputs, final = reference(case)
    for step in range(STEPS):
        found = np.concatenate([of_rank[0][step]["pooled"] for of_rank in results[name]])
        columns = [outputs[step][table][:, low:high] for table, low, high in case.columns]
        expected = np.concatenate([np.empty((case.batch_size, 0)), *columns], axis=1)
        np.testing.assert_allclose(found, expected, **tolerance)
        for table in case.task().tables:
            if not table.is_pooled:
                rows = np.concatenate([of_rank[0][step]["rows"][table.name] for of_rank in results[name]])
                np.testing.assert_allclose(rows, outputs[step][table.name], **tolerance)
    held = 0
    for _, shards, _ in results[name]:
        for table, rows, columns, weights in shards:
            assert not np.allclose(weights, first_weights(case.task().table(table))[slice(*rows), slice(*columns)])
            np.testing.assert_allclose(weights, final[table][slice(*rows), slice(*columns)], **tolerance)
            held += 1
    assert held == sum(len(shard.devices) for shard in case.shards)


IDS = ["lengths_exchange", "values_exchange"]


@pytest.mark.parametrize(
    ("name", "exchanges"),
    [
        ("column-wise", [*IDS, "output_exchange", "gradient_exchange"]),
        ("row-wise", [*IDS, "sum_exchange", "sum_gradient_exchange"]),
        ("grid", [*IDS, "domain_sum_exchange", "between_exchange", "between_gradient_exchange",
                  "domain_gradient_exchange"]),
        ("data-parallel", ["replica_exchange"]),
        ("unpooled, rows", [*IDS, "row_exchange", "row_gradient_exchange"]),
        ("mix", [*IDS, "output_exchange", "sum_exchange", "domain_sum_exchange", "between_exchange",
                 "gradient_exchange", "sum_gradient_exchange", "between_gradient_exchange",
                 "domain_gradient_exchange", "replica_exchange"]),
    ],
)  # fmt: skip
def test_a_plan_has_the_exchanges_of_its_shards_and_no_others(name, exchanges, results):
    assert [of_rank[2] for of_rank in results[name]] == [STEPS * exchanges] * DEVICES


def test_rows_of_each_sharding_type_are_exchanged_apart():
    def tables_exchanged_together(name):
        return [
            {shard.table.name for of_devices in of_type for rows in of_devices if rows.shards
             for shard in rows.shards.shards}
            for of_type in CASES[name].step_plan().unpooled
        ]  # fmt: skip

    assert tables_exchanged_together("unpooled, mix") == [{"v"}, {"w"}, {"u"}]
    assert tables_exchanged_together("unpooled, rows") == [{"u", "v"}]
    assert tables_exchanged_together("unpooled, columns") == [{"u", "w"}]
