"""Train the simulator on a folder of measured samples, as 'shardgym collect' writes it.

Writes weights (safetensors) and a model card (JSON) for the oracle, and for the judge if there are samples for it. Both
are used with make_cost("simulator", weights=FOLDER). Without samples of exchanges, as from a machine with one GPU, they
predict compute, and communication is modelled by the task's topology. The same samples and seed give the same weights.
--report also trains the published architecture for comparison and draws plots.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from shardgym.cli.output import print_json, say
from shardgym.cli.parser import Parser, folder, natural, positive
from shardgym.errors import InputError


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("data", metavar="DATA", type=Path, help="folder of samples")
    parser.add_argument("-o", "--out", required=True, metavar="FOLDER", type=folder, help="where weights and cards go")
    parser.add_argument("--seed", type=natural, default=0, help="of weights, split and order (%(default)s)")
    parser.add_argument("--epochs", type=positive, help="passes over the samples (default: 120, more for few samples)")
    parser.add_argument("--report", action="store_true", help="compare with the published architecture, draw plots")
    parser.add_argument("--force", action="store_true", help="overwrite weights in FOLDER")


def run(arguments: Namespace) -> int:
    """Train and print errors."""
    from shardgym.pretraining.data import load_data
    from shardgym.pretraining.fit import FitSettings
    from shardgym.pretraining.pretrain import pretrain
    from shardgym.pretraining.report import report

    _check_out(arguments.out, force=arguments.force)
    data = load_data(arguments.data)
    if not len(data.comm):
        say(f"{arguments.data} has no exchanges: the simulator will predict compute, and model communication")
    settings = FitSettings() if arguments.epochs is None else FitSettings(epochs=arguments.epochs, least_steps=0)
    with _Bars(quiet=arguments.json) as bars:
        cards = pretrain(data, arguments.out, settings, arguments.seed, bars.advance)
        if arguments.report:
            cards = [report(card, data, arguments.out, progress=bars.advance)[0] for card in cards]
    if arguments.json:
        print_json([card.to_dict() for card in cards])
        return 0
    for card in cards:
        print(f"{card.role}, trained for {card.hardware}\n\n{_errors(card.errors)}\n")
    if len(cards) == 1:
        say("no judge was trained: too few samples of role 'judge'")
    print(f"weights and cards are in {arguments.out}")
    return 0


def _check_out(folder: Path, *, force: bool) -> None:
    taken = list(folder.glob("*.safetensors")) if folder.is_dir() else []
    if folder.exists() and not folder.is_dir():
        raise InputError(f"cannot write into {folder}: expected a folder")
    if taken and not force:
        raise InputError(f"{folder} holds weights ({taken[0].name}): give another folder, or --force to overwrite them")


def _errors(errors: dict[str, dict[str, float | None]]) -> str:
    rows = [
        {"part": part.replace("_", " "), "error": _percent(e["mape"]), "repeat": _percent(e["noise_mape"]),
         "tau": e["kendall_tau"], "tau of repeat": e["noise_kendall_tau"]}
        for part, e in errors.items()
    ]  # fmt: skip
    return tabulate(rows, headers="keys", tablefmt="simple", floatfmt=".3f", missingval="unknown")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"


class _Bars:
    """One progress bar per thing that is trained."""

    def __init__(self, *, quiet: bool) -> None:
        self._disable = True if quiet else None
        self._bar: Any = None
        self._name = ""

    def advance(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of `name` are done."""
        if name != self._name or self._bar is None:
            self._close()
            self._bar = tqdm(total=total, desc=name, unit="epoch", disable=self._disable)
            self._name = name
        self._bar.update(done - self._bar.n)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
