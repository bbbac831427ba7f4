"""Calibration: what turns the times of the simulator and of the roofline into those of another machine.

`shardgym calibrate` measures complete steps of some plans and fits it. Forward and backward compute are multiplied by
factors that depend on the kind of work, as machines differ in how fast they compute, read bytes and find rows. Other
work of a step is fitted anew (`shardgym.costs.step_parts`), and exchanges are priced by the link model.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.arrays import Floats
from shardgym.costs.step_parts import AMOUNTS, LINES
from shardgym.records import CONFIG, Name, Record

#: What the simulator's factors depend on, see `kinds_of_work`.
KINDS = ("constant", "time", "bytes of an id", "share of distinct bytes", "ids of a shard", "pooled bytes")

Six = Annotated[tuple[float, ...], Field(min_length=len(KINDS), max_length=len(KINDS))]
Positive = Annotated[float, Field(gt=0)]
Line = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=len(AMOUNTS), max_length=len(AMOUNTS))
]  # fmt: skip
Lines = Annotated[tuple[Line, ...], Field(min_length=len(LINES), max_length=len(LINES))]


@dataclass(frozen=True, config=CONFIG)
class Agreement(Record):
    """How a cost agrees with measured steps of plans that it was not fitted to.

    Attributes:
        compute_error: mean absolute error of forward plus backward of a device, as a fraction.
        total_error: of whole steps.
        level: mean prediction over mean measurement of whole steps.
        kendall_tau: of whole steps, mean over tasks.
    """

    compute_error: float
    total_error: float
    level: float
    kendall_tau: float


@dataclass(frozen=True, config=CONFIG)
class Calibration(Record):
    """A fitted machine.

    Attributes:
        hardware: tag of the machine.
        weights: version of the simulator's oracle that `forward` and `backward` belong to.
        forward, backward: logarithms of the factors of the simulator by `KINDS`.
        roofline: factors of the roofline, forward and backward.
        lines: ms of the other work of a step, by `LINES` and `AMOUNTS`.
        plans: how many were measured.
        before, after: agreement of each cost by name, each plan held out of the fit that it is compared with.
    """

    hardware: Name
    weights: str
    forward: Six
    backward: Six
    roofline: tuple[Positive, Positive]
    lines: Lines
    plans: int
    before: dict[str, Agreement]
    after: dict[str, Agreement]
    schema: Literal["shardgym.calibration/1"] = "shardgym.calibration/1"


def kinds_of_work(work: Floats, ms: Floats) -> Floats:
    """Return what factors depend on, shape (G, 6): 1, and logarithms in units that are 1 for common work.

    Args:
        work: of devices, by `shardgym.costs.simulator.features.WORK_NAMES`, shape (G, 8).
        ms: predicted forward and backward compute, shape (G, 2).
    """
    shards, ids, _, gathered, _, distinct, pooled, _ = np.maximum(work, 1e-9).T
    return np.column_stack([
        np.ones(len(ms)), np.log(ms.sum(axis=1) / 30), np.log(gathered / ids / 128), np.log(distinct / gathered / 0.2),
        np.log(ids / shards / 1e5), np.log(pooled / gathered / 0.1),
    ])  # fmt: skip
