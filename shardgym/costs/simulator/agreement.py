"""Agreement: how well a simulator ranks plans as fresh measurements do, kept next to its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.costs.simulator.shipped import SHIPPED
from shardgym.records import CONFIG, Name, Record, Whole

AGREEMENT = "agreement.json"

Share = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=CONFIG)
class Figures(Record):
    """Means over tasks of one model against two measurements of the same random plans.

    Attributes:
        kendall_tau: of the plans of a task.
        mape: mean absolute percentage error, as a fraction.
        unfamiliar: share of the plans that the model has a note about.
        version: of the model; "" for the measurement.
    """

    kendall_tau: Annotated[float, Field(ge=-1, le=1)]
    mape: Share
    unfamiliar: Annotated[float, Field(ge=0, le=1)] = 0.0
    version: str = ""


@dataclass(frozen=True, config=CONFIG)
class Agreement(Record):
    """What `benchmarks/simulator_agreement.py` found.

    Attributes:
        suite: whose tasks.
        tasks: how many of them.
        plans: random plans of each at most.
        created: UTC.
        hardware: that the measurements are of.
        repeat: one measurement against the other.
        models: of every cost model by name, "oracle" and "judge" among them.
    """

    suite: Name
    tasks: Annotated[Whole, Field(ge=1)]
    plans: Annotated[Whole, Field(ge=3)]
    created: str
    hardware: Name
    repeat: Figures
    models: dict[str, Figures]
    schema: Literal["shardgym.agreement/1"] = "shardgym.agreement/1"

    def sentence(self, version: str) -> str | None:
        """Say how far the model of a version can be trusted; None when it was not compared."""
        for name, found in self.models.items():
            if found.version == version:
                return (
                    f"Over {self.plans} random plans on each of {self.tasks} tasks of {self.suite}, Kendall's tau of "
                    f"this {name} with fresh measurements is {found.kendall_tau:.3f} on average; that of a measurement "
                    f"with its own repeat is {self.repeat.kendall_tau:.3f}."
                )
        return None


def shipped_agreement(hardware: str, models: Path = SHIPPED) -> Agreement | None:
    """Return what ships about the simulators of a hardware tag; None when nothing does.

    Raises:
        InputError: the file is damaged.
    """
    path = models / hardware / AGREEMENT
    return Agreement.load(path) if path.is_file() else None
