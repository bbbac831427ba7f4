"""What is collected: the size of the problem on each kind of device, and how many samples of each role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from shardgym.collection.whole_plans import DEVICES
from shardgym.errors import InputError, UnknownNameError
from shardgym.task import Optimizer, Precision
from shardgym.topology import GIB

Kind = Literal["compute", "comm"]
Role = Literal["oracle", "judge", "test", "plans"]

KINDS: tuple[Kind, ...] = get_args(Kind)
ROLES: tuple[Role, ...] = get_args(Role)


class Setup(NamedTuple):
    """The problem whose shards are measured.

    Attributes:
        pool: tables come from it; its train half for the oracle and the judge, its test half for test samples.
        scale: rows and batch of the pool are divided by it.
        memory_bytes: of one device; a shard set may take `OVERFULL` times that.
        precision: of weights and of pooled values.
        optimizer: fused into the backward pass.
    """

    pool: str
    scale: int
    memory_bytes: int
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"


#: The sizes of the suites `dlrm4-v1` and `dlrm8-v1` on the CPU, of `dlrm4-gpu-v1` and `dlrm8-gpu-v1` on a GPU.
SETUPS: dict[str, Setup] = {
    "cpu": Setup("synthetic-2021", scale=8, memory_bytes=GIB // 2),
    "cuda": Setup("synthetic-2021", scale=1, memory_bytes=4 * GIB),
}

#: Search compares partial and hypothetical placements, so a shard set may be somewhat larger than a device.
OVERFULL = 1.25


class Effort(NamedTuple):
    """Steps of one sample.

    More steps make the times of small shard sets steadier (12 instead of 4 took the spread between repeats below 1 ms
    from 12 to 7 %), not those of larger ones, which differ from one measurement to the next as a whole.

    Attributes:
        warmups: untimed compute steps.
        iterations: timed compute steps.
        small_iterations: timed steps of small shard sets.
        small_values: a set is small when a step reads fewer weights than this.
        comm_warmups: untimed exchanges, per direction.
        comm_iterations: timed exchanges, per direction.
    """

    warmups: int
    iterations: int
    small_iterations: int
    small_values: int
    comm_warmups: int
    comm_iterations: int


EFFORT = Effort(warmups=1, iterations=4, small_iterations=12, small_values=250_000, comm_warmups=2, comm_iterations=12)


class Preset(NamedTuple):
    """How much is collected.

    Attributes:
        counts: samples per device, kind and role, without repeats.
        device_counts: that exchanges are measured over, as far as the machine can.
    """

    counts: dict[str, dict[Kind, dict[Role, int]]]
    device_counts: tuple[int, ...]


_COMM: dict[Role, int] = {"oracle": 2_000, "judge": 700, "test": 300}
_QUICK: dict[Kind, dict[Role, int]] = {
    "compute": {"oracle": 60, "judge": 24, "test": 12},
    "comm": {"oracle": 12, "judge": 6, "test": 3},
}
#: Complete plans need no second look on the CPU, where whole plans can be measured with communication and all.
_GPU_PLANS = 200 * DEVICES

PRESETS: dict[str, Preset] = {
    "survey": Preset(
        {
            "cpu": {"compute": {"oracle": 10_000, "judge": 4_000, "test": 1_500}, "comm": _COMM},
            "cuda": {"compute": {"oracle": 13_000, "judge": 5_200, "test": 1_800, "plans": _GPU_PLANS}, "comm": _COMM},
        },
        tuple(range(2, 9)),
    ),
    "quick": Preset({"cpu": _QUICK, "cuda": _QUICK}, (2, 3)),
}

Counts = Mapping[Kind, Mapping[Role, int]]


def preset_counts(preset: str, device: str, compute: int | None, comm: int | None) -> Counts:
    """Return samples per kind and role.

    Args:
        preset: its name.
        device: "cpu" or "cuda".
        compute: compute samples over all roles, in the preset's proportions; the preset's own number when None.
        comm: the same for exchanges.

    Raises:
        UnknownNameError: no such preset.
        InputError: a number is negative.
    """
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    chosen = PRESETS[preset].counts[device]
    totals: dict[Kind, int | None] = {"compute": compute, "comm": comm}
    for kind, total in totals.items():
        if total is not None and total < 0:
            raise InputError(f"{kind}={total}: expected a number of samples, at least 0")
    return {kind: apportion(chosen[kind], totals[kind]) for kind in KINDS}


def apportion(shares: Mapping[Role, int], total: int | None) -> dict[Role, int]:
    """Divide `total` in the proportions of `shares`, by largest remainders; `shares` themselves when it is None."""
    if total is None:
        return dict(shares)
    exact = {role: total * share / sum(shares.values()) for role, share in shares.items()}
    counts = {role: int(value) for role, value in exact.items()}
    for role in sorted(exact, key=lambda r: counts[r] - exact[r])[: total - sum(counts.values())]:
        counts[role] += 1
    return counts
