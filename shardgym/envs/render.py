"""Renders a placement as text, or as a picture with two bars per device, drawn in NumPy.

The left bar of a device is its time, compute (blue) below communication (orange). The right bar is its memory (green),
relative to the largest device's. A red mark stands under the slowest device. The numbers at the top are this device's
time in ms (left), and the placed and total shards (right).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.costs.plan_cost import COMPUTE_COLUMNS
from shardgym.costs.rendering import bar
from shardgym.envs.game import Game
from shardgym.errors import import_extra

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


class Devices(NamedTuple):
    """Rendered figures of an episode's devices; times are those of the complete plan or of the shards placed so far."""

    #: Compute and communication, forward and backward, shape (D, 2); None if the cost model has no times.
    times_ms: Floats | None
    loads: Floats  #: bytes, columns, columns times pooling factor and number of shards, shape (D, 4)
    capacity: Floats  #: bytes of memory, shape (D,)
    #: The device that sets the cost, in a tie the one that computes longest; None if nothing is placed or timed.
    slowest: int | None

    @property
    def slowest_ms(self) -> float:
        """Time of the slowest device; 0 without times."""
        return 0.0 if self.times_ms is None else float(self.times_ms.sum(axis=1).max())


def render(game: Game, row: int, mode: str) -> Any:
    """Return an episode as text (str, mode "ansi") or as a picture (uint8, shape (360, W, 3), mode "rgb_array").

    All pictures have the same even width, which depends only on the largest number of devices.

    Raises:
        MissingDependencyError: pictures need Pillow, which is not installed.
    """
    return _text(game, row) if mode == "ansi" else _picture(game, row)


def _devices(game: Game, row: int) -> Devices:
    p = game.placements
    num_devices = game.catalog.tasks[p.task[row]].num_devices
    loads = p.loads[row, :num_devices]
    capacity = p.capacity[row, :num_devices]
    cost = game.cost_of[row]
    phases = game.scorer.per_device(row) if cost is None else cost.per_device
    if phases is None or not np.isfinite(phases).all():
        return Devices(None, loads, capacity, None)
    total = phases.sum(axis=1)
    compute = phases[:, COMPUTE_COLUMNS].sum(axis=1)
    # Waiting counts as communication, so devices often tie but for rounding.
    slowest = int(np.where(np.isclose(total, total.max(), rtol=1e-9), compute, -1.0).argmax())
    times = np.stack([compute, total - compute], axis=1)
    return Devices(times, loads, capacity, slowest if p.placed[row] else None)


def _text(game: Game, row: int) -> str:
    """Return a table of devices with the slowest one marked, under a headline that names the next shard."""
    p = game.placements
    devices = _devices(game, row)
    rows = []
    for device, (used, columns, lookups, count) in enumerate(devices.loads.tolist()):
        times = ["-", "-"] if devices.times_ms is None else [f"{ms:.3f}" for ms in devices.times_ms[device]]
        capacity = float(devices.capacity[device])
        name = f"{device} *" if device == devices.slowest else str(device)
        memory = [bar(used / capacity if capacity else 1.0, _BAR), f"{used / 2**20:.1f} / {capacity / 2**20:.1f}"]
        rows.append([name, int(count), *times, *memory, int(columns), f"{lookups:.0f}"])
    noun = "shards" if game.rules.limits and game.rules.limits.max_splits else "tables"
    headers = ["device", noun, "compute ms", "comm ms", "memory", "MiB", "columns", "lookups x columns"]
    headline = f"{p.placed[row]} of {p.count[row]} {noun} placed"
    if p.placed[row] < p.count[row]:
        shard = {name: game.catalog.shard[name][p.next[row]] for name in ("name", "rows", "width", "bytes")}
        headline += f"; next: '{shard['name']}', {shard['rows']} x {shard['width']}, {shard['bytes'] / 2**20:.1f} MiB"
        if p.kinds is not None and game.catalog.kind["holders"][p.next[row]] > 1:
            headline += f" on each of {game.catalog.kind['holders'][p.next[row]]} devices"
    footer = "" if devices.slowest is None else "* the slowest device, which sets the cost\n"
    return f"{headline}\n{tabulate(rows, headers=headers, disable_numparse=True)}\n{footer}"


def _picture(game: Game, row: int) -> Picture:
    import_extra("PIL.ImageDraw", "pictures of environments")
    from PIL import Image, ImageDraw, ImageFont

    devices = _devices(game, row)
    max_devices = game.layout.max_devices
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
    counts = f"{game.placements.placed[row]}/{game.placements.count[row]}"
    draw.text((width - _MARGIN, _MARGIN), counts, INK, font, anchor="ra")
    return np.array(image)


def _draw_device(draw: ImageDraw, left: int, width: int, devices: Devices, device: int) -> None:
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
    """Round up to 1, 2 or 5 times a power of ten, so that the scale seldom changes."""
    if ms <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(ms))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= ms))
