"""Backend: what differs between measuring on the CPU and on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shardgym.costs.fbgemm.content import Content

if TYPE_CHECKING:
    import torch

    from shardgym.costs.fbgemm.requests import Ids


class KeptBytes(NamedTuple):
    """How many bytes of ids may stay on the device for the next job.

    Attributes:
        drawn: of tables, one by one.
        merged: of whole contents.
    """

    drawn: int
    merged: int


class Backend(Protocol):
    """Builds operators on one device and times their steps.

    Attributes:
        keeps_operators: whether an operator costs nothing to keep, because operators share their weights' memory.
    """

    keeps_operators: bool

    @property
    def device(self) -> torch.device:
        """Where weights and ids live and kernels run."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what the parent may want to know: hardware tag and versions."""
        ...

    def kept_bytes(self) -> KeptBytes:
        """Return how many bytes of ids may be kept."""
        ...

    @property
    def host_waits(self) -> int:
        """Steps so far whose times include waiting for the host."""
        ...

    def room(self, content: Content, batches: int) -> AbstractContextManager[None]:
        """Return a context in which there is memory to measure `content` with so many batches of ids.

        Entering or leaving it raises `Refusal`, with the bytes needed and available, when there is not.
        """
        ...

    def build(self, content: Content) -> Any:
        """Return the operator of `content`."""
        ...

    def gradient(self, content: Content) -> torch.Tensor:
        """Return a fixed random normal gradient of the pooled output, shape (batch_size, width)."""
        ...

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once and return both times in ms."""
        ...

    def release(self) -> None:
        """Give back memory that nothing uses any more."""
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
