"""Groups of processes that are kept for the next task with as many devices."""

from __future__ import annotations

from shardgym.costs.collectives.measured import CollectiveGroup

_KEPT = 2


class Groups:
    """Starts a group of processes when one of its size is asked for first, and keeps the last few.

    Args:
        device: "cpu" or "cuda".
        timeout_s: seconds that one exchange may take.
    """

    def __init__(self, device: str, timeout_s: float) -> None:
        self._device, self._timeout_s = device, timeout_s
        self._kept: dict[int, CollectiveGroup] = {}

    def of(self, size: int) -> CollectiveGroup:
        """Return the group of this many processes."""
        group = self._kept.pop(size, None) or CollectiveGroup(size, self._device, self._timeout_s)
        self._kept[size] = group
        while len(self._kept) > _KEPT:
            self._kept.pop(next(iter(self._kept))).close()
        return group

    def close(self) -> None:
        """End all processes; they are started again when needed."""
        while self._kept:
            self._kept.popitem()[1].close()
