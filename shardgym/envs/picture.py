"""Picture of a placement: two bars per device, drawn with NumPy alone.

The left bar of a device is its time, compute (blue) with communication (orange) on top; the right one is its memory
(green), as high as its share of the largest device's. A red mark stands under the slowest device. The numbers at the
top are its time in ms (left) and the shards placed and there (right).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats
from shardgym.envs.digits import text_mask
from shardgym.envs.loads import Loads
from shardgym.envs.placement import Placement

Picture = npt.NDArray[np.uint8]

PAPER, TRACK, INK = (255, 255, 255), (226, 226, 226), (60, 60, 60)
COMPUTE, COMM, MEMORY, SLOWEST = (52, 101, 175), (240, 150, 50), (80, 160, 90), (205, 40, 40)

_HEIGHT, _MARGIN, _TOP, _BAR_HEIGHT, _LEAST_WIDTH = 360, 16, 40, 290, 320


def render_picture(placement: Placement, phases: Floats | None, max_devices: int) -> Picture:
    """Draw a placement.

    Args:
        placement: what to draw.
        phases: of what is placed, shape (D, 4); None where there are no times.
        max_devices: devices that the picture has room for, so that all episodes have pictures of one size.

    Returns:
        RGB, shape (360, W, 3); W is even and depends on `max_devices` alone.
    """
    loads = Loads.of(placement, phases)
    cell = min(max(640 // max_devices, 6), 96) // 2 * 2
    width = max(2 * _MARGIN + cell * max_devices, _LEAST_WIDTH)
    picture = np.full((_HEIGHT, width, 3), PAPER, np.uint8)
    for device in range(len(loads.used)):
        _draw_device(picture[_TOP:, _MARGIN + device * cell : _MARGIN + (device + 1) * cell], loads, device)
    _write(picture[:, _MARGIN:], "-" if loads.slowest is None else f"{_slowest_ms(loads):.2f}")
    counts = f"{placement.placed}/{placement.shards}"
    _write(picture[:, width - _MARGIN - text_mask(counts).shape[1] :], counts)
    return picture


def _draw_device(cell: Picture, loads: Loads, device: int) -> None:
    width = cell.shape[1]
    gap, bar = max(width // 16, 1), max(width * 6 // 16, 1)
    time, memory = cell[:_BAR_HEIGHT, gap : gap + bar], cell[:_BAR_HEIGHT, width - gap - bar : width - gap]
    time[:] = TRACK
    if loads.compute_ms is not None and loads.comm_ms is not None:
        full = _round_up(_slowest_ms(loads))
        compute, comm = loads.compute_ms[device] / full, loads.comm_ms[device] / full
        _fill(time, compute + comm, COMM)
        _fill(time, compute, COMPUTE)
    largest = float(loads.capacity.max())
    _fill(memory, loads.capacity[device] / largest, TRACK)
    _fill(memory, loads.used[device] / largest, MEMORY)
    if device == loads.slowest:
        cell[_BAR_HEIGHT + 6 : _BAR_HEIGHT + 14, gap : width - gap] = SLOWEST


def _fill(bar: Picture, share: float, colour: tuple[int, int, int]) -> None:
    bar[len(bar) - round(share * len(bar)) :] = colour


def _slowest_ms(loads: Loads) -> float:
    assert loads.compute_ms is not None
    assert loads.comm_ms is not None
    return float((loads.compute_ms + loads.comm_ms).max())


def _round_up(ms: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is at least `ms`, so that the scale seldom changes."""
    if ms <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(ms))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= ms))


def _write(picture: Picture, text: str) -> None:
    mask = text_mask(text)
    picture[_MARGIN : _MARGIN + len(mask), : mask.shape[1]][mask] = INK
