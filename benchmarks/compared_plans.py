"""Our plans and those of TorchRec's planner for five public models, as real steps on gloo ranks of this machine.

    python benchmarks/compared_plans.py [--model NAME ...] [--ranks N ...] [--minutes M] [--out FOLDER]

Each pair is a run of `shardgym compare`: the embedding collections, with a share of their rows and a small batch, under
the plan of TorchRec's planner with its defaults and under that of `ShardGymPlanner`. Ratios are ours to theirs; below 1
ours is faster. The last columns are what the run says of the cost: see `shardgym.costs.calibrated.Calibration`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from drawn_tasks import drawn_model
from tabulate import tabulate

from shardgym import EmbeddingTable, ShardingTask, Topology, load_suite
from shardgym.tables.pools.load import load_model
from shardgym.tables.table import Optimizer

#: Memory of each rank for tables.
MEMORY_BYTES = 4 * 2**30
#: Bytes per second that gloo's all-to-alls and all-reduces of 16 MB carry between two ranks of one machine.
BANDWIDTH = 0.65e9

# TorchEasyRec, examples/multi_tower_din_taobao.config: rows of its features, 16 columns each. Three of them are
# sequences, too, with tables of their own, for a query and up to 50 clicks.
_DIN = {
    "user_id": 1_141_730, "cms_segid": 98, "cms_group_id": 14, "final_gender_code": 3, "age_level": 8,
    "pvalue_level": 5, "shopping_level": 5, "occupation": 3, "new_user_class_level": 6, "adgroup_id": 846_812,
    "cate_id": 12_961, "campaign_id": 423_438, "customer": 255_877, "brand": 461_498, "price": 100, "pid": 20,
}  # fmt: skip
_CLICKS = ("adgroup_id", "cate_id", "brand")


class Model(NamedTuple):
    """A public model, as it is run here."""

    tables: tuple[EmbeddingTable, ...]
    optimizer: Optimizer
    #: Of one rank.
    samples: int
    #: Share of the rows that is kept.
    rows: float

    def task(self, ranks: int) -> ShardingTask:
        """Return the task of so many CPUs."""
        topology = Topology(ranks, MEMORY_BYTES, intra_bandwidth=BANDWIDTH)
        return ShardingTask(self.tables, topology, self.samples * ranks, optimizer=self.optimizer)


def models() -> dict[str, Model]:
    """Return the models by name."""
    deep = tuple(EmbeddingTable(f"deep.{name}", rows, 16) for name, rows in _DIN.items())
    clicks = tuple(
        EmbeddingTable(f"seq.{name}_clicks", _DIN[name], 16, pooling_factor=51.0, num_features=2, pooling="none")
        for name in _CLICKS
    )
    v4 = load_suite("dlrm-v4")[0]
    dcnv2 = load_model("dlrm-dcnv2")
    small = drawn_model("100 small tables", 8)
    return {
        "MLPerf DLRM-DCNv2": Model(dcnv2.pool.tables, "adagrad", 512, 0.01),
        "MLPerf DLRMv4": Model(v4.tables, "rowwise_adagrad", 4, 0.001),
        # Its sample has the slots of MLPerf's first DLRM.
        "HugeCTR DLRM": Model(load_model("dlrm-mlperf-v1").pool.tables, "exact_sgd", 1024, 0.01),
        "TorchEasyRec DIN": Model(deep + clicks, "adagrad", 1024, 1.0),
        "100 small tables": Model(small.tables, "rowwise_adagrad", 1024, 1.0),
    }


def compared(model: Model, ranks: int, minutes: float, folder: Path) -> dict[str, Any]:
    """Run `shardgym compare` and return its result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.json").write_text(model.task(ranks).to_json(), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "shardgym"]
    command += ["compare", "task.json", "--plan", "torchrec", "--plan", "shardgym", "--rows", str(model.rows)]
    command += ["--minutes", str(minutes), "-o", "result.json", "--force"]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def row(name: str, ranks: int, result: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed of a result."""
    theirs, ours = result["plans"]
    predicted = [max(map(sum, plan["predicted_ms"])) for plan in (theirs, ours)]
    levels = result["calibration"] or {}  # as intervals, from four rounds on
    return {
        "model": name,
        "ranks": ranks,
        "TorchRec": _types(theirs),
        "ours": _types(ours),
        "ratio": ours["ratio"],
        "95 % interval": "" if ours["low"] is None else f"{ours['low']:.3f} .. {ours['high']:.3f}",
        result["cost"]: predicted[1] / predicted[0],
        "compute": levels.get("compute", ""),
        "exchange": levels.get("exchange", ""),
        "fixed ms": levels.get("fixed_ms", ""),
        "rounds": len(ours["round_ms"]),
    }


def _types(plan: dict[str, Any]) -> str:
    """Return how many tables have each sharding type, by its initials."""
    tables = [table for module in plan["plan"]["modules"].values() for table in module.values()]
    counts = Counter("".join(word[0] for word in table["sharding_type"].split("_")) for table in tables)
    return " ".join(f"{count} {kind}" for kind, count in counts.most_common())


def main() -> None:
    """Run all pairs and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(models()), help="repeatable; all by default")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--minutes", type=float, default=5.0, help="time of each pair")
    parser.add_argument("--out", type=Path, default=Path("compared"), metavar="FOLDER")
    given = parser.parse_args()
    rows = []
    for name, model in models().items():
        for ranks in given.ranks if not given.model or name in given.model else ():
            result = compared(model, ranks, given.minutes, given.out / f"{name} on {ranks}".replace(" ", "-"))
            rows.append(row(name, ranks, result))
    print(tabulate(rows, headers="keys", floatfmt=".3f"))


if __name__ == "__main__":
    main()
