"""What the documentation says of shipped weights, from their cards."""

from __future__ import annotations

from typing import Any

from tabulate import tabulate

from shardgym.costs.simulator.agreement import shipped_agreement
from shardgym.costs.simulator.card import ModelCard
from shardgym.costs.simulator.shipped import SHIPPED

_PARTS = {
    "forward_compute": "forward compute", "backward_compute": "backward compute", "compute": "compute",
    "forward_comm": "forward communication", "backward_comm": "backward communication", "plans": "whole plans, compute",
}  # fmt: skip


def model_summary(hardware: str) -> str:
    """Return Markdown about the weights of a hardware tag."""
    oracle, judge = (ModelCard.load(SHIPPED / hardware / f"{role}.json") for role in ("oracle", "judge"))
    counts = oracle.samples
    parts = [
        f"Trained on {counts['compute']:,} measured shard sets and {counts['comm']:,} exchanges (the judge on "
        f"{judge.samples['compute']:,} and {judge.samples['comm']:,} others), tested on {counts['test compute']:,} and "
        f"{counts['test comm']:,} of tables that no role learned from. Mean absolute error of a prediction, and of one "
        "measurement against its own repeat:",
        _errors(oracle, judge),
        _learning(oracle),
    ]
    found = shipped_agreement(hardware)
    if found is not None:
        rows = [
            {"": _named(name, of.version), "Kendall's tau": f"{of.kendall_tau:.3f}",
             "mean absolute error": _percent(of.mape)}
            for name, of in {"a repeated measurement": found.repeat, **found.models}.items()
        ]  # fmt: skip
        parts += [
            f"Against two fresh measurements each of up to {found.plans} random plans of {found.tasks} tasks of "
            f"{found.suite} on {found.hardware} (`python benchmarks/simulator_agreement.py`), means over tasks:",
            tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True),
        ]
    return "\n\n".join(part for part in parts if part)


def _named(name: str, version: str) -> str:
    """Say which version of the analytic cost was compared; those of the simulators are their weights."""
    return f"{name} {version}" if name == "roofline" else name


def _errors(oracle: ModelCard, judge: ModelCard) -> str:
    compared = oracle.comparison or {}
    rows = [
        {"": title, "repeat": _percent(oracle.errors[part]["noise_mape"]),
         "oracle": _percent(oracle.errors[part]["mape"]), "judge": _percent(judge.errors[part]["mape"]),
         "published architecture": _percent(compared.get(part, {}).get("published", {}).get("mape"))}
        for part, title in _PARTS.items() if part in oracle.errors
    ]  # fmt: skip
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, missingval="")


def _learning(oracle: ModelCard) -> str:
    reached: dict[str, Any] = (oracle.comparison or {}).get("samples_to_twice_noise", {})
    if not reached:
        return ""
    ours, theirs = (f"{n:,}" if n else "more than there are" for n in (reached["ours"], reached["published"]))
    return f"Shard sets needed to come within twice the noise: {ours}; the published architecture: {theirs}."


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
