"""Rules: what episodes depend on besides their task and the cost model."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass

from shardgym.envs.figures import check_order
from shardgym.envs.shards import SplitLimits
from shardgym.errors import InputError, UnknownNameError
from shardgym.records import short_repr

OBSERVATIONS = ("compact", "full")
REWARDS = ("terminal", "dense")
RENDER_MODES = ("ansi", "rgb_array")


class RenderModeError(InputError, TypeError):
    """A render mode that there is not. A `TypeError` too: makers of environments try again without one then."""


@dataclass(frozen=True)
class Rules:
    """The rules of an environment's episodes.

    Attributes:
        order: in which tables come up, one of `ORDERS`.
        reward: one of `REWARDS`.
        penalty: what an episode earns that ends without a cost.
        limits: how often shards may be halved; None where tables are placed whole and halving is no action.

    Raises:
        InputError: a penalty that is not negative and finite.
        UnknownNameError: no such order or reward.
    """

    order: str
    reward: str
    penalty: float
    limits: SplitLimits | None = None

    def __post_init__(self) -> None:
        check_order(self.order)
        check_choice("reward", self.reward, REWARDS)
        number = isinstance(self.penalty, numbers.Real)
        if not (number and math.isfinite(self.penalty) and self.penalty < 0):
            raise InputError(f"penalty {short_repr(self.penalty)} is not a negative number")


def check_choice(kind: str, name: str, known: Iterable[str]) -> str:
    """Return `name`; raises `UnknownNameError` when it is none of those known."""
    if name not in known:
        raise UnknownNameError(kind, name, known)
    return name


def check_render_mode(mode: str | None) -> str | None:
    """Return `mode`; raises `RenderModeError` when there is none like it."""
    if mode is not None and mode not in RENDER_MODES:
        expected = " or ".join(repr(known) for known in (None, *RENDER_MODES))
        raise RenderModeError(f"unknown render_mode '{mode}': expected {expected}")
    return mode
