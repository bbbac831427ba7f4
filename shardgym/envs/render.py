"""Drawing a placement: as text, or as a picture with two bars per device, drawn with NumPy alone.

The left bar of a device is its time, compute (blue) with communication (orange) on top; the right one is its memory
(green), as high as its share of the largest device's. A red mark stands under the slowest device. The numbers at the
top are its time in ms (left), and the shards placed and in total (right).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from shardgym.costs.rendering import bar
from shardgym.envs.figures import DeviceFigures, Shown, shown
from shardgym.envs.game import Game
from shardgym.errors import InputError, import_extra

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

RENDER_MODES = ("ansi", "rgb_array")

Picture = npt.NDArray[np.uint8]

PAPER, TRACK, INK = (255, 255, 255), (226, 226, 226), (60, 60, 60)
COMPUTE, COMM, MEMORY, SLOWEST = (52, 101, 175), (240, 150, 50), (80, 160, 90), (205, 40, 40)

_HEIGHT, _MARGIN, _TOP, _BAR_HEIGHT, _LEAST_WIDTH = 360, 16, 40, 290, 320
#: Characters of a bar in text.
_BAR = 20

_FONT_PX = 18


class RenderModeError(InputError, TypeError):
    """An unknown render mode. Also a `TypeError`, on which Gymnasium's makers try again without a render mode."""


def check_render_mode(mode: str | None) -> str | None:
    """Return a mode of rendering.

    Raises:
        RenderModeError: it is unknown.
        MissingDependencyError: pictures need Pillow, which is not installed.
    """
    if mode is not None and mode not in RENDER_MODES:
        expected = " or ".join(repr(known) for known in (None, *RENDER_MODES))
        raise RenderModeError(f"unknown render_mode '{mode}': expected {expected}")
    if mode == "rgb_array":
        import_extra("PIL.ImageDraw", "pictures of environments")
    return mode


def render(game: Game, row: int, mode: str) -> Any:
    """Return an episode as text (str, mode "ansi") or as a picture (uint8, shape (360, W, 3), mode "rgb_array").

    The width of pictures is even and depends on the largest number of devices alone, so that all have one size.
    """
    what = shown(game, row)
    return _text(what) if mode == "ansi" else _picture(what, game.layout.max_devices)


def _text(what: Shown) -> str:
    """Return a table of devices with the slowest one marked, under a headline that names what comes next."""
    devices = what.devices
    rows = []
    for device, (used, columns, lookups, count) in enumerate(devices.loads.tolist()):
        times = ["-", "-"] if devices.times_ms is None else [f"{ms:.3f}" for ms in devices.times_ms[device]]
        capacity = float(devices.capacity[device])
        name = f"{device} *" if device == devices.slowest else str(device)
        memory = [bar(used / capacity, _BAR), f"{used / 2**20:.1f} / {capacity / 2**20:.1f}"]
        rows.append([name, int(count), *times, *memory, int(columns), f"{lookups:.0f}"])
    headers = ["device", what.noun, "compute ms", "comm ms", "memory", "MiB", "columns", "lookups x columns"]
    headline = f"{what.done} of {what.total} {what.noun} placed"
    if what.next:
        headline += f"; next: {what.next}"
    footer = "" if devices.slowest is None else "* the slowest device, which sets the cost\n"
    return f"{headline}\n{tabulate(rows, headers=headers, disable_numparse=True)}\n{footer}"


def _picture(what: Shown, max_devices: int) -> Picture:
    from PIL import Image, ImageDraw, ImageFont  # an extra, see check_render_mode

    devices = what.devices
    cell = min(max(640 // max_devices, 6), 96) // 2 * 2
    width = max(2 * _MARGIN + cell * max_devices, _LEAST_WIDTH)
    image = Image.new("RGB", (width, _HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    draw.fontmode = "1"  # ink or paper: no greys between them
    for device in range(len(devices.capacity)):
        _draw_device(draw, _MARGIN + device * cell, cell, devices, device)
    font = ImageFont.load_default(_FONT_PX)
    slowest = "-" if devices.slowest is None else f"{devices.slowest_ms:.2f}"
    draw.text((_MARGIN, _MARGIN), slowest, INK, font)
    counts = f"{what.done}/{what.total}"
    draw.text((width - _MARGIN, _MARGIN), counts, INK, font, anchor="ra")
    return np.array(image)


def _draw_device(draw: ImageDraw, left: int, width: int, devices: DeviceFigures, device: int) -> None:
    gap = max(width // 16, 1)
    thickness = max(width * 6 // 16, 1)

    def bar_of(share: float, x: int, colour: tuple[int, int, int]) -> None:
        height = round(share * _BAR_HEIGHT)
        if height:
            bottom = _TOP + _BAR_HEIGHT - 1
            draw.rectangle((x, bottom - height + 1, x + thickness - 1, bottom), colour)

    time, memory = left + gap, left + width - gap - thickness
    bar_of(1.0, time, TRACK)
    if devices.times_ms is not None:
        compute, comm = devices.times_ms[device] / _round_up(devices.slowest_ms)
        bar_of(compute + comm, time, COMM)
        bar_of(compute, time, COMPUTE)
    largest = float(devices.capacity.max())
    bar_of(devices.capacity[device] / largest, memory, TRACK)
    bar_of(devices.loads[device, 0] / largest, memory, MEMORY)
    if device == devices.slowest:
        below = _TOP + _BAR_HEIGHT
        draw.rectangle((time, below + 6, left + width - gap - 1, below + 13), SLOWEST)


def _round_up(ms: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is at least `ms`, so that the scale seldom changes."""
    if ms <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(ms))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= ms))
