"""What lies next to trained weights: a card (what they were trained on) and how well they rank plans."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.simulator.weights import SHIPPED
from shardgym.records import CONFIG, Digest, Name, Record, Whole

#: Name of the file with an `Agreement`.
AGREEMENT = "agreement.json"

#: Relative difference of two measured plans below which they are close.
CLOSE = 0.05
#: Share of close pairs that a judge has to order as measured. Another measurement of three rounds, on another
#: processor, orders 61 % so: `board_repeat`.
LEAST_RIGHT = 0.7

Share = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=CONFIG)
class ModelCard(Record):
    """Written next to the weights of one role.

    Attributes:
        role: oracle or judge.
        hardware: tag of the machine that was measured.
        weights_sha256: of the file of weights.
        created: UTC.
        seed: of training.
        settings: of training.
        versions: of Python and the packages.
        data_sha256: of each file of samples.
        collection: settings of the collection, by file.
        samples: measurements by kind. A content that was measured again counts again; the data says which are the same.
        errors: by part: error of the predictions on test rows (tables that no role learned from) as fractions,
            that of one measurement against an independent repeat, and Kendall's tau of both.
        error_by_shards: of total compute, by number of shards on the device.
        error_by_dim: of total compute, by the widest shard on the device.
        curves: training and validation loss of each network by epoch.
        paces: how many times as long forward and backward took in each collection as at the pace that errors are of.
    """

    role: Literal["oracle", "judge"]
    hardware: Name
    weights_sha256: Digest
    created: str
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    data_sha256: dict[str, str]
    collection: dict[str, Any]
    samples: dict[str, int]
    errors: dict[str, Any]
    error_by_shards: list[dict[str, Any]]
    error_by_dim: list[dict[str, Any]]
    curves: dict[str, Any]
    paces: dict[str, tuple[float, float]] = field(default_factory=dict)
    schema: Literal["shardgym.model_card/1"] = "shardgym.model_card/1"


@dataclass(frozen=True, config=CONFIG)
class ModelAgreement(Record):
    """Means over tasks of one model against two measurements of the same plans.

    Attributes:
        kendall_tau: of the plans of a task.
        mape: mean absolute percentage error, as a fraction.
        level: mean prediction over mean measurement.
        unfamiliar: share of the plans that the model has a note about.
        version: of the model; "" for the measurement.
    """

    kendall_tau: Annotated[float, Field(ge=-1, le=1)]
    mape: Share
    level: Annotated[float, Field(ge=0)] = 1.0
    unfamiliar: Annotated[float, Field(ge=0, le=1)] = 0.0
    version: str = ""


@dataclass(frozen=True, config=CONFIG)
class BoardAgreement(Record):
    """How well one model ranks the plans that solvers made for measured boards: nearly all of them are good.

    Attributes:
        kendall_tau: of the distinct plans of a task, mean over tasks.
        close_right: share of the pairs that differ by less than `CLOSE` as measured which the model orders as measured.
        version: of the model; "" for another measurement.
    """

    kendall_tau: Annotated[float, Field(ge=-1, le=1)]
    close_right: Annotated[float, Field(ge=0, le=1)]
    version: str


@dataclass(frozen=True, config=CONFIG)
class Agreement(Record):
    """How well a simulator ranks plans as fresh measurements do: what `benchmarks/simulator.py` found.

    Attributes:
        suite: whose tasks.
        tasks: how many of them.
        plans: of each at most, random and good ones.
        created: UTC.
        hardware: that the measurements are of.
        repeat: one measurement against the other.
        models: of every cost model by name, "oracle" and "judge" among them.
        board_tasks: of the boards by the measured cost of today.
        board_hardware: that these boards are of.
        board_repeat: one measurement of their plans against another; None where no board was measured twice.
        board_models: of the same models on their plans.
    """

    suite: Name
    tasks: Annotated[Whole, Field(ge=1)]
    plans: Annotated[Whole, Field(ge=3)]
    created: str
    hardware: Name
    repeat: ModelAgreement
    models: dict[str, ModelAgreement]
    board_tasks: Whole = 0
    board_hardware: tuple[str, ...] = ()
    board_repeat: BoardAgreement | None = None
    board_models: dict[str, BoardAgreement] = field(default_factory=dict)
    schema: Literal["shardgym.agreement/1"] = "shardgym.agreement/1"

    def sentence(self, version: str) -> str | None:
        """Say how far the model of a version can be trusted; None when it was not compared."""
        for name, found in self.models.items():
            if found.version == version:
                return (
                    f"Over {self.plans} random and good plans on each of {self.tasks} tasks of {self.suite}, "
                    f"Kendall's tau of this {name} with fresh measurements is {found.kendall_tau:.3f} on average; "
                    f"that of a measurement with its own repeat is {self.repeat.kendall_tau:.3f}."
                )
        return None

    def caution(self, version: str) -> str | None:
        """Say what differences on a board of the model mean; None when it was not held against measured boards.

        A board is called screening unless the model orders `LEAST_RIGHT` of the close pairs right.
        """
        for name, found in self.board_models.items():
            if found.version == version:
                facts = (
                    f"on the plans of solvers for {self.board_tasks} measurements of tasks of boards "
                    f"({', '.join(self.board_hardware)}), tau of this {name} is "
                    f"{found.kendall_tau:.2f}, and of pairs that differ by less than {CLOSE:.0%} it orders "
                    f"{found.close_right:.0%} as measured"
                )
                if self.board_repeat is not None:
                    again = self.board_repeat
                    facts += f"; of another measurement, {again.kendall_tau:.2f} and {again.close_right:.0%}"
                if found.close_right < LEAST_RIGHT:
                    return f"Screening: {facts}. Differences below {CLOSE:.0%} say nothing; measured boards lead."
                return f"Held against measurements: {facts}."
        return None


def shipped_agreement(name: str, models: Path = SHIPPED) -> Agreement | None:
    """Return what ships about the simulators in a folder; None when nothing does.

    Args:
        name: of the folder, a hardware tag.
        models: where the folders are.

    Raises:
        InputError: the file is damaged.
    """
    path = models / name / AGREEMENT
    return Agreement.load(path) if path.is_file() else None
