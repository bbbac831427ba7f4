"""A stand-in for `torch` where it speaks of CUDA: its GPU has its own memory and clock, its tensors are the CPU's."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import torch


@dataclasses.dataclass
class Gpu:
    """What happened on a GPU that is `ahead` of the host for the first queries; events take a ms, or go by a clock."""

    name: str = "NVIDIA Stand-in 1"
    free: int = 10**9
    ahead: int = 0
    now: float = 0.0
    log: list = dataclasses.field(default_factory=list)
    clock_ms: Callable[[], float] | None = None


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.gpu.now = self.gpu.now + 1.0 if self.gpu.clock_ms is None else self.gpu.clock_ms()
        self.at = self.gpu.now
        self.gpu.log.append("event")

    def query(self):
        self.gpu.ahead -= 1
        return self.gpu.ahead >= 0

    def elapsed_time(self, end):
        return end.at - self.at


class Torch:
    """`torch` as a module sees it in whose place it is put: every device is the CPU."""

    def __init__(self, gpu):
        properties = SimpleNamespace(name=gpu.name, L2_cache_size=400)
        self.cuda = SimpleNamespace(
            is_available=lambda: True, get_device_properties=lambda _: properties, set_device=lambda _: None,
            Event=lambda enable_timing: Event(gpu), mem_get_info=lambda *_: (gpu.free, 2 * gpu.free),
            synchronize=lambda *_: gpu.log.append("wait"), empty_cache=lambda: gpu.log.append("release"),
        )  # fmt: skip

    def device(self, *_):
        return torch.device("cpu")

    def set_default_device(self, _):
        pass

    def __getattr__(self, name):
        return getattr(torch, name)
