"""Tracks: which cost scores the plans of a suite, and which one solvers may query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from shardgym.records import CONFIG, Name, Record


@dataclass(frozen=True, config=CONFIG)
class CostChoice(Record):
    """A cost model by name.

    Attributes:
        cost: a registered name.
        settings: keyword arguments that it is made with.
    """

    cost: Name
    settings: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, given: str | CostChoice) -> CostChoice:
        """Return the choice that a suite file names, which may be a bare name."""
        return cls(given) if isinstance(given, str) else given


@dataclass(frozen=True, config=CONFIG)
class Track(Record):
    """One way to score a suite. Boards of different tracks are different boards.

    Attributes:
        judge: scores plans; no solver gets to see it.
        oracle: what solvers may query.
    """

    judge: CostChoice
    oracle: CostChoice

    @classmethod
    def between(cls, judge: str | CostChoice, oracle: str | CostChoice) -> Track:
        """Make a track of two costs, each a choice or a bare name."""
        return cls(CostChoice.of(judge), CostChoice.of(oracle))


#: What suites without a simulated track of their own are scored with when the simulator is asked for as the judge: the
#: second simulator, of another architecture and trained on measurements that the first never saw.
SIMULATED = Track(CostChoice("simulator", {"role": "judge"}), CostChoice("simulator"))


def track_for(judge: str | None, tracks: Mapping[str, Track], default: Track) -> Track:
    """Return the track that a judge's name stands for.

    Args:
        judge: name of a cost model; the default track's when None.
        tracks: of the suite, by name of the judge.
        default: whose oracle serves for judges that no track names.
    """
    if judge is None or judge == default.judge.cost:
        return default
    if judge in tracks:
        return tracks[judge]
    return SIMULATED if judge == SIMULATED.judge.cost else Track(CostChoice(judge), default.oracle)
