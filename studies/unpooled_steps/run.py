"""How well costs agree with TorchRec's own steps of unpooled tables, for all types that an `EmbeddingCollection` has.

    sudo python studies/unpooled_steps/run.py --out DIR [--ranks 2 4] [--links 1000 500] [--rounds N] [--steps N]

As `studies/sharding_kinds`, whose script this uses: links, turns, passes, and what is printed are the same. The model
has one `EmbeddingCollection`, and a dense part that scores every row and adds the scores of a sample up. On CPUs there
are three types; `data_parallel` fails there, as FBGEMM's dense kernel pools rows.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from tabulate import tabulate
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard.plus.sharing import even_rows
from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.fbgemm import namespaces
from shardgym.table import ZipfIds
from shardgym.torchrec import model_from_task, to_torchrec

WIDTH = 64
#: Rows and ids per sample: long sequences of few items, and features of one id.
TABLES = ((40_000, 12), (20_000, 8), (8_000, 6), (60_000, 1), (50_000, 1), (30_000, 1), (10_000, 1), (5_000, 1))
#: The first so many tables have the long sequences.
LONG = 3
MODELS = ("roofline", "torchrec_rating")


def sharding_kinds() -> Any:
    """Return the script of `studies/sharding_kinds` as a module, which runs the models and plans of this one."""
    path = Path(__file__).parents[1] / "sharding_kinds/run.py"
    spec = importlib.util.spec_from_file_location("sharding_kinds", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.MODELS = MODELS
    module.make_plans = make_plans
    module.predicted_ms = predicted_ms
    module._model_steps = model_steps
    module._dense_steps = dense_steps
    return module


def make_task(ranks: int, rate: float, batch_size: int) -> ShardingTask:
    """Return the task for so many ranks with links of `rate` bytes per second."""
    tables = [
        EmbeddingTable(f"t{n}", rows, WIDTH, float(ids), ZipfIds(s=1.05, q=10.0), pooling="none")
        for n, (rows, ids) in enumerate(TABLES)
    ]
    topology = Topology(
        ranks, 2**30, fast_domain_size=2, interconnect=f"{rate * 8e-6:.0f} Mbit/s", intra_bandwidth=rate,
        inter_bandwidth=rate, intra_latency_ms=0.0, inter_latency_ms=0.0,
    )  # fmt: skip
    return ShardingTask(tuple(tables), topology, batch_size, optimizer="exact_sgd", name="unpooled-steps")


def make_plans(task: ShardingTask) -> dict[tuple[str, str], ShardingPlan]:
    """Return plans by sharding type, which is "mixed" for some, and what is special."""
    ranks = task.num_devices
    tables = list(task.tables)
    long, short = tables[:LONG], tables[LONG:]

    def columns(table: EmbeddingTable) -> list[Shard]:
        width = WIDTH // ranks
        return [
            Shard(table.name, (0, table.num_embeddings), (n * width, n * width + width), n) for n in range(ranks)
        ]  # fmt: skip

    def in_turn(of: Sequence[EmbeddingTable], first: int = 0) -> list[Shard]:
        return [Shard.whole(table, (first + n) % ranks) for n, table in enumerate(of)]

    def rows(of: Sequence[EmbeddingTable]) -> list[Shard]:
        return [shard for table in of for shard in even_rows(table, ranks)]

    def cut(of: Sequence[EmbeddingTable]) -> list[Shard]:
        return [shard for table in of for shard in columns(table)]

    plans = {
        ("table_wise", "in turn"): in_turn(tables),
        ("table_wise", "balanced"): [*in_turn(long), *in_turn(short, ranks - 1)],
        ("table_wise", "long ones on one rank"): [*[Shard.whole(t, 0) for t in long], *in_turn(short, 1)],
        ("column_wise", "long"): [*cut(long), *in_turn(short)],
        ("column_wise", "short"): [*cut(short), *in_turn(long)],
        ("column_wise", "all"): cut(tables),
        ("row_wise", "long"): [*rows(long), *in_turn(short)],
        ("row_wise", "short"): [*rows(short), *in_turn(long)],
        ("row_wise", "all"): rows(tables),
        ("mixed", "rows, columns"): [*rows(long[:1]), *cut(long[1:]), *in_turn(short)],
        ("mixed", "columns, rows"): [*cut(long[:1]), *rows(long[1:]), *in_turn(short)],
    }
    return {name: ShardingPlan.of(task, shards) for name, shards in plans.items()}


class Scores(nn.Module):
    """Scores rows and adds up those of each sample."""

    def __init__(self, dense_features: int) -> None:
        super().__init__()
        self.bottom = nn.Linear(dense_features, 1)
        self.of_row = nn.Linear(WIDTH, 1)

    def forward(self, features: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return one number per sample; `rows` are table after table, as `lengths` are."""
        samples = len(features)
        numbers = torch.arange(samples).repeat(len(lengths) // samples)
        of_rows = torch.repeat_interleave(numbers, lengths, output_size=len(rows))
        scores: torch.Tensor = self.bottom(features).squeeze(1)
        return scores.index_add(0, of_rows, self.of_row(rows).squeeze(1))


class Sequences(nn.Module):
    """All tables in one collection, and the dense part."""

    def __init__(self, task: ShardingTask, dense_features: int) -> None:
        super().__init__()
        self.names = [table.name for table in task.tables]
        self.tables = model_from_task(task)
        self.dense = Scores(dense_features)

    def forward(self, features: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """Return one number per sample."""
        found = self.tables(sparse)
        rows = torch.cat([found[name].values() for name in self.names])
        values: torch.Tensor = self.dense(features, rows, sparse.lengths())
        return values


def model_steps(task: ShardingTask, plan: ShardingPlan) -> Any:
    """Return the sharded model, and its optimiser for what TorchRec's is not."""
    exported = to_torchrec(plan, task, device_type="cpu").plan[""]
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.01}
    sharded = DistributedModelParallel(
        Sequences(task, KINDS.DENSE_FEATURES), device=torch.device("cpu"), plan=TorchRecPlan({"tables": exported}),
        sharders=[EmbeddingCollectionSharder(fused_params=fused)],
    )  # fmt: skip
    own = [parameter for name, parameter in sharded.named_parameters() if ".embeddings." not in name]
    return sharded, torch.optim.SGD(own, lr=0.01)


def dense_steps(task: ShardingTask) -> Any:
    """Return the same for the dense part, whose rows stay as they are; gradients reach them nevertheless."""
    dense = DistributedDataParallel(Scores(KINDS.DENSE_FEATURES))
    samples = task.batch_size // task.num_devices
    rows = torch.randn(int(samples * sum(table.pooling_factor for table in task.tables)), WIDTH, requires_grad=True)
    return lambda features, ids: dense(features, rows, ids.lengths()), torch.optim.SGD(dense.parameters(), lr=0.01)


def predicted_ms(task: ShardingTask, plans: list[ShardingPlan]) -> Iterator[tuple[str, list[float]]]:
    """Yield `MODELS` and the ms of each plan; TorchRec's planner is told the rate of the links."""
    per_ms = task.topology.intra_bandwidth / 1000
    links: dict[str, Any] = {"compute_device": "cpu", "intra_host_bw": per_ms, "inter_host_bw": per_ms}
    for name, settings in zip(MODELS, ({}, links), strict=True):
        costs = make_cost(name, **settings).evaluate(task, plans)
        yield name, [of.total_ms if of.reason is None else np.nan for of in costs]


KINDS = sharding_kinds()


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of result.csv")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=[2, 4], help="(%(default)s)")
    parser.add_argument("--links", type=int, nargs="+", default=[1000, 500], help="Mbit/s, for each (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of each of two launches of TorchRec (%(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="of a round, after two that do not count (%(default)s)")
    parser.add_argument("--fbgemm-rounds", type=int, default=2, help="of each of two evaluations (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=8192, help="of all ranks (%(default)s)")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    given = parser.parse_args()
    path = given.out / "result.csv"
    if not given.report:
        if reason := namespaces.why_not():
            parser.error(reason)
        if len(given.links) != len(given.ranks):
            parser.error(f"--links: {len(given.links)} given for {len(given.ranks)} numbers of ranks, expected one each")
        measured: list[dict[str, Any]] = []
        for ranks, links in zip(given.ranks, given.links, strict=True):
            task = make_task(ranks, links * 1e6 / 8, given.batch_size)
            measured += KINDS.measure(task, given.rounds, given.steps, given.fbgemm_rounds)
        given.out.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(measured[0]))
            writer.writeheader()
            writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in measured)
        versions = {name: make_cost(name).version for name in ("fbgemm", *MODELS)}
        path.with_name("versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    with path.open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    groups = [[row for row in rows if row["ranks"] == ranks] for ranks in dict.fromkeys(row["ranks"] for row in rows)]
    for table in (KINDS.by_kind, KINDS.by_cost):
        found = [row for group in groups for row in table(group)]
        print(tabulate(found, headers="keys", floatfmt=".2f", tablefmt="github", missingval="-"), end="\n\n")


if __name__ == "__main__":
    main()
