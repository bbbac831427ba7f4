"""What changes from a CPU core to a modelled GPU: fusion, column cuts, and the ranking of solvers.

    python studies/cpu_to_gpu/run.py [--plot FILE]

The core is `cpu-amd-epyc-2c` by its simulator, at the sizes of dlrm4-v1; the GPU is a modelled H100, at those of
dlrm4-gpu-v1. Tables are of the test half of the pool, drawn with seed 0. Boards are the committed ones.
--plot draws fusion and cuts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from shardgym import EmbeddingTable, Shard, ShardingTask, Topology, load_pool, make_cost
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.errors import ShardGymError, import_extra
from shardgym.leaderboard import load_boards
from shardgym.leaderboard.ranking import SolverResults

ROOT = Path(__file__).parents[2]

WIDTHS = (4, 8, 16, 32, 64, 128)
TABLES = (2, 4, 8, 15, 30, 60)
SETS = 12
#: Divides rows and batch on the core, as the suites do.
_CPU_SCALE = 8
_MEMORY = 2**50
#: Boards whose solvers are compared: of the core, measured, and of the GPU that the tasks name, modelled.
_BOARDS = ("dlrm4-v1-fbgemm", "dlrm4-gpu-v1-gpu")


def device_ms(cost: CostModel, tables: Sequence[EmbeddingTable], batch_size: int, columns: int | None = None) -> Floats:
    """Return forward and backward of one device that holds tables, or that many columns of each, in ms."""
    task = ShardingTask(tuple(tables), Topology(num_devices=1, memory_bytes=(_MEMORY,)), batch_size)
    shards = [Shard(t.name, (0, t.num_embeddings), (0, columns or t.embedding_dim), 0) for t in tables]
    costs = cost.additive()
    sums = costs.latents(costs.encode(task, shards)).sum(axis=0, keepdims=True)
    return np.asarray(costs.device_ms(sums, np.array([len(shards)]))[0], dtype=np.float64)


def drawn_sets(tables: Sequence[EmbeddingTable], count: int) -> list[list[EmbeddingTable]]:
    """Draw sets of so many tables with widths of the suites; the same at every scale of the pool."""
    rng = np.random.default_rng([0, count])
    sets = []
    for _ in range(SETS):
        chosen = rng.choice(len(tables), count, replace=False).tolist()
        widths = rng.choice(WIDTHS, count).tolist()
        sets.append([replace(tables[i], embedding_dim=w) for i, w in zip(chosen, widths, strict=True)])
    return sets


def cases() -> list[tuple[str, CostModel, Sequence[EmbeddingTable], int]]:
    """Return name, cost, tables and batch of what is compared."""
    pool = load_pool("synthetic-2021").split()[1]
    small = pool.scaled(_CPU_SCALE)
    core = make_cost("simulator")
    gpu = make_cost("gpu", hardware="h100")
    return [
        ("core, batch 8,192", core, small.tables, 8192),
        ("H100 modelled, batch 65,536", gpu, pool.tables, 65536),
        ("H100 modelled, batch 8,192", gpu, small.tables, 8192),
        ("H100 modelled, batch 512", gpu, pool.scaled(128).tables, 512),
    ]


def fusion() -> dict[str, list[float]]:
    """Return the time of a fused operator over the sum of its tables alone, by number of tables: medians over sets."""
    found: dict[str, list[float]] = {}
    for name, cost, tables, batch in cases():
        found[name] = []
        for count in TABLES:
            ratios = [
                device_ms(cost, chosen, batch).sum() / sum(device_ms(cost, [t], batch).sum() for t in chosen)
                for chosen in drawn_sets(tables, count)
            ]
            found[name].append(float(np.median(ratios)))
    return found


def cuts() -> dict[str, list[float]]:
    """Return the time of one half of a table's columns over that of the whole, by width: medians over tables."""
    found: dict[str, list[float]] = {}
    for name, cost, tables, batch in cases():
        chosen = [table for table in tables if table.pooling_factor > 1][: 4 * SETS]
        found[name] = []
        for width in WIDTHS[1:]:
            wide = [replace(table, embedding_dim=width) for table in chosen]
            ratios = [device_ms(cost, [t], batch, width // 2).sum() / device_ms(cost, [t], batch).sum() for t in wide]
            found[name].append(float(np.median(ratios)))
    return found


def rankings() -> dict[str, dict[str, float]]:
    """Return cost over that of size_lookup_greedy, by board and solver: geometric means over tasks both solved."""
    found: dict[str, dict[str, float]] = {}
    for name in _BOARDS:
        (board,) = load_boards([ROOT / "leaderboards" / name])
        costs = {results.solver: np.log(results.cost_ms) for results in SolverResults.of_board(board)}
        base = costs["size_lookup_greedy"]
        found[name] = {}
        for solver, of_solver in costs.items():
            both = np.isfinite(of_solver) & np.isfinite(base)
            found[name][solver] = float(np.exp((of_solver - base)[both].mean()))
    return found


def tables(fused: dict[str, list[float]], cut: dict[str, list[float]], ranked: dict[str, dict[str, float]]) -> str:
    """Return all tables as Markdown."""
    stats: Any = import_extra("scipy.stats", "rank correlations")
    rows = [[name, *(f"{ratio:.2f}" for ratio in ratios)] for name, ratios in fused.items()]
    parts = ["Fused operator over the sum of its tables alone, by number of tables:"]
    parts.append(tabulate(rows, ["", *map(str, TABLES)], tablefmt="github", disable_numparse=True))
    rows = [[name, *(f"{ratio:.2f}" for ratio in ratios)] for name, ratios in cut.items()]
    parts.append("Half of a table's columns over the whole table, by its width; 0.50 if a cut cost nothing:")
    parts.append(tabulate(rows, ["", *map(str, WIDTHS[1:])], tablefmt="github", disable_numparse=True))
    solvers = sorted(set.intersection(*(set(of) for of in ranked.values())), key=lambda s: ranked[_BOARDS[1]][s])
    rows = [[solver, *(f"{of[solver]:.3f}" for of in ranked.values())] for solver in solvers]
    first = [ranked[_BOARDS[0]][solver] for solver in solvers]
    taus = [stats.kendalltau(first, [of[solver] for solver in solvers]).statistic for of in ranked.values()]
    rows.append(["Kendall's tau of the ranking with that of the core", *(f"{tau:.2f}" for tau in taus)])
    parts.append("Cost over that of size_lookup_greedy, geometric means over tasks:")
    parts.append(tabulate(rows, ["solver", *ranked], tablefmt="github", disable_numparse=True))
    return "\n\n".join(parts)


def draw(path: Path, fused: dict[str, list[float]], cut: dict[str, list[float]]) -> None:
    """Draw fusion and cuts side by side."""
    plt: Any = import_extra("matplotlib.pyplot", "drawing")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for ax, found, where, label in (
        (axes[0], fused, TABLES, "fused / sum of single tables"),
        (axes[1], cut, WIDTHS[1:], "half of the columns / whole table"),
    ):
        for name, ratios in found.items():
            ax.plot(where, ratios, marker="o", label=name)
        ax.set_xscale("log", base=2)
        ax.set_xticks(where, labels=[str(x) for x in where])
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
    axes[0].set_xlabel("tables")
    axes[1].set_xlabel("width of the table")
    axes[1].axhline(0.5, color="black", linewidth=0.8)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw fusion and cuts")
    given = parser.parse_args()
    try:
        fused = fusion()
        cut = cuts()
        made = tables(fused, cut, rankings())
        if given.plot:
            draw(given.plot, fused, cut)
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
