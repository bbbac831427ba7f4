"""Backend: what differs between measuring on the CPU and on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.requests import Request

if TYPE_CHECKING:
    import torch

#: Ids on the device: indices and offsets.
Ids = tuple["torch.Tensor", "torch.Tensor"]


class Backend(Protocol):
    """Builds operators on one device and times their steps.

    Attributes:
        keeps_operators: whether an operator costs nothing to keep, because operators share their weights' memory.
    """

    keeps_operators: ClassVar[bool]

    def facts(self) -> dict[str, Any]:
        """Return what the parent may want to know: hardware tag and versions."""
        ...

    def require(self, content: Content, batches: int) -> None:
        """Raise `Refusal`, with the bytes needed and available, when `content` does not fit."""
        ...

    def build(self, content: Content) -> Any:
        """Return the operator of `content`."""
        ...

    def load(self, request: Request) -> Ids:
        """Return the ids of a request on the device."""
        ...

    def gradient(self, content: Content) -> torch.Tensor:
        """Return a fixed random normal gradient of the pooled output, shape (batch_size, width)."""
        ...

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once and return both times in ms."""
        ...

    def cache_bytes(self) -> int:
        """Return how many bytes of ids may be kept."""
        ...

    def release(self) -> None:
        """Give back memory that was only needed by an operator that is gone."""
        ...


def versions() -> dict[str, str]:
    """Return the versions of torch and of whichever FBGEMM distribution is installed."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"torch": str(torch.__version__)}
    for name in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def dtype_of(content: Content) -> torch.dtype:
    """Return the type of weights and pooled values."""
    import torch

    return torch.float16 if content.precision == "fp16" else torch.float32
