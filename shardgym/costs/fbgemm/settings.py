"""Settings of the measured cost, checked."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from shardgym.costs.fbgemm.communication import Choice
from shardgym.errors import InputError


@dataclasses.dataclass(frozen=True)
class MeasureSettings:
    """How to measure.

    Attributes:
        device: "cpu" or "cuda".
        workers: processes that measure compute at the same time, each with a core or GPU of its own. Workers on
            cores share caches and memory bandwidth, so one gives the quietest times.
        rounds: passes over everything that is compared; at least 2, as the spread is taken over them.
        warmups: steps before the timed ones in every round.
        iterations: timed steps in every round, each with ids of its own.
        comm: "measured", "modelled", or "auto": measured where the machine can.
        timeout_s: seconds that one round of one device may take before its worker is replaced.
        seed: of ids and of the order of measurements.
    """

    device: str = "cpu"
    workers: int = 1
    rounds: int = 7
    warmups: int = 2
    iterations: int = 3
    comm: Choice = "auto"
    timeout_s: float = 120.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every setting; raises `InputError`."""
        _one_of("device", self.device, ("cpu", "cuda"))
        _one_of("comm", self.comm, get_args(Choice))
        for name, least in (("workers", 1), ("rounds", 2), ("warmups", 0), ("iterations", 1), ("seed", 0)):
            _at_least(name, getattr(self, name), least)
        if isinstance(self.timeout_s, bool) or not 0 < self.timeout_s < 1e6:
            raise InputError(f"timeout_s={self.timeout_s}: expected seconds between 0 and 1e6")


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name}={value!r}: expected one of {', '.join(known)}")


def _at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: expected a whole number, at least {least}")
