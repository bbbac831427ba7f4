"""What lies next to trained weights: a card (what they were trained on) and how well they rank measured plans."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.simulator.weights import SHIPPED
from shardgym.records import CONFIG, Digest, Name, Record, Whole

#: Name of the file with an `Agreement`.
AGREEMENT = "agreement.json"

#: Name of a second measurement among the models of an `Agreement`.
REPEAT = "another measurement"
#: Relative difference of two measured plans below which they are close.
CLOSE = 0.05
#: How far below that of a second measurement the tau of a judge may be, at the lower end of a 95 % interval.
ALLOWANCE = 0.03


@dataclass(frozen=True, config=CONFIG)
class ModelCard(Record):
    """Written next to the weights of one role."""

    role: Literal["oracle", "judge"]
    hardware: Name  #: tag of the machine that was measured
    weights_sha256: Digest  #: of the file of weights
    created: str  #: UTC
    seed: int  #: of training
    settings: dict[str, Any]
    versions: dict[str, str]  #: of Python and the packages
    data_sha256: dict[str, str]  #: of each file of samples, and the settings of its collection
    collection: dict[str, Any]
    #: Measurements by kind. A content that was measured again counts again; the data says which are the same.
    samples: dict[str, int]
    #: By part: error of the predictions on test rows (tables that no role learned from) as fractions, that of one
    #: measurement against an independent repeat, and Kendall's tau of both.
    errors: dict[str, Any]
    curves: dict[str, Any]  #: training and validation loss of each network by epoch
    #: How many times as long forward and backward took in each collection as at the pace that errors are of.
    paces: dict[str, tuple[float, float]] = field(default_factory=dict)
    schema: Literal["shardgym.model_card/2"] = "shardgym.model_card/2"


@dataclass(frozen=True, config=CONFIG)
class ModelAgreement(Record):
    """How well one model ranks the plans that solvers made for measured boards: nearly all of them are good."""

    kendall_tau: Annotated[float, Field(ge=-1, le=1)]  #: of the distinct plans of a task, mean over tasks
    #: Share of the pairs that differ by less than `CLOSE` as measured which the model orders as measured.
    close_right: Annotated[float, Field(ge=0, le=1)]
    version: str = ""  #: of the model; "" for another measurement
    #: By how much its tau is at least above that of another measurement: the lower end of a 95 % interval.
    ahead_from: float = 0.0


@dataclass(frozen=True, config=CONFIG)
class Agreement(Record):
    """How well models rank plans as measured boards do: what `benchmarks/simulator.py` found."""

    tasks: Annotated[Whole, Field(ge=1)]  #: of measured boards, those that were measured twice
    hardware: tuple[str, ...]  #: that the boards are of
    created: str  #: UTC
    models: dict[str, ModelAgreement]  #: by name, "oracle", "judge" and `REPEAT` among them
    schema: Literal["shardgym.agreement/3"] = "shardgym.agreement/3"

    def sentence(self, version: str) -> str | None:
        """Say how far a judge of this version can be trusted; None when it was not compared.

        A board is called screening unless the model's tau is certainly at most `ALLOWANCE` below that of a second
        measurement.
        """
        for found in self.models.values():
            if found.version == version:
                again = self.models[REPEAT]
                facts = (
                    f"on {self.tasks} tasks ({', '.join(self.hardware)}), Kendall's tau of this judge with measured "
                    f"costs is {found.kendall_tau:.2f}, that of {REPEAT} {again.kendall_tau:.2f}, and at most "
                    f"{max(0.0, -found.ahead_from):.2f} higher by a 95 % interval. Where plans differ by less than "
                    f"{CLOSE:.0%}, the judge agrees with the measured order in {found.close_right:.0%} of pairs, "
                    f"{REPEAT} in {again.close_right:.0%}."
                )
                if found.ahead_from < -ALLOWANCE:
                    return f"Screening: {facts} Measured boards lead."
                return f"Held against measurements: {facts}"
        return None


def shipped_agreement(name: str, models: Path = SHIPPED) -> Agreement | None:
    """Return what ships about the simulators in a folder; None when nothing does.

    Args:
        name: name of the model's folder, a hardware tag.
        models: folder of all models.
    """
    path = models / name / AGREEMENT
    return Agreement.load(path) if path.is_file() else None
