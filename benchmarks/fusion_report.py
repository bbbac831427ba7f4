"""Table and plot of `fusion.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.pretraining.assess import kendall_tau, mape


def summary(sizes: list[int], sums: Floats, fused: Floats, predicted: Floats | None) -> list[dict[str, Any]]:
    """Return one row per number of tables. All figures are of forward plus backward but for the two that say otherwise.

    Both models are scaled by one factor for all sets before their errors are taken: machines drift between the
    simulator's training data and now, and a factor changes no decision.

    Args:
        sizes: tables of each set.
        sums: sums of single times in ms, forward and backward, shape (sets, 2).
        fused: times of the fused operator, likewise.
        predicted: forward plus backward of the simulator in ms, shape (sets,).
    """
    added, total, rows = sums.sum(axis=1), fused.sum(axis=1), []
    models = {"the sum": added} | ({} if predicted is None else {"the simulator": predicted})
    for size in sorted(set(sizes)):
        here = np.array(sizes) == size
        ratio = total[here] / added[here]
        row: dict[str, Any] = {
            "tables": size, "sets": int(here.sum()), "fused / sum": float(np.median(ratio)),
            "least": float(ratio.min()), "most": float(ratio.max()),
            "forward": float(np.median(fused[here, 0] / sums[here, 0])),
            "backward": float(np.median(fused[here, 1] / sums[here, 1])),
        }  # fmt: skip
        for name, model in models.items():
            scaled = model * float(np.median(total / model))
            row[f"error of {name}"] = mape(scaled[here], total[here])
            row[f"tau of {name}"] = kendall_tau(scaled[here], total[here])
        rows.append(row)
    return rows


def plot(path: Path, hardware: str, sizes: list[int], sums: Floats, fused: Floats) -> None:
    """Draw fused time against the sum of single times, and their ratio against the number of tables."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    added, total = sums.sum(axis=1), fused.sum(axis=1)
    points = left.scatter(added, total, c=np.log2(sizes), s=14, cmap="viridis")
    ends = [min(added.min(), total.min()), max(added.max(), total.max())]
    left.plot(ends, ends, "k--", linewidth=0.8, label="no effect of fusion")
    left.set(
        xscale="log", yscale="log", xlabel="sum of single tables, ms", ylabel="one fused operator, ms", title=hardware
    )
    left.legend()
    bar = figure.colorbar(points, ax=left, ticks=np.log2(sorted(set(sizes))))
    bar.ax.set_yticklabels([str(size) for size in sorted(set(sizes))])
    bar.set_label("tables")
    for name, column, offset in (("forward", 0, 0.97), ("backward", 1, 1.03)):
        ratio = fused[:, column] / sums[:, column]
        right.plot(np.array(sizes) * offset, ratio, "o", markersize=4, label=name, alpha=0.7)
    right.axhline(1.0, color="k", linestyle="--", linewidth=0.8)
    right.set(xscale="log", xlabel="tables in the operator", ylabel="fused / sum of single tables")
    right.set_xticks(sorted(set(sizes)), [str(size) for size in sorted(set(sizes))])
    right.minorticks_off()
    right.legend()
    figure.savefig(path, dpi=130)
