"""PlacementState: placing shards one by one, at the price of one vector addition and one call of the head each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.costs.plan_cost import PHASES
from shardgym.costs.simulator.compute_net import LATENT
from shardgym.costs.simulator.encoding import EncodedShards
from shardgym.costs.simulator.exchange_times import exchange_times
from shardgym.costs.simulator.predictors import OraclePredictor
from shardgym.errors import InputError
from shardgym.plan import Shard
from shardgym.task import ShardingTask

#: Where a candidate is that is on no device.
UNPLACED = -1


class PlacementState:
    """Which candidate shard is on which device, and what that costs.

    Candidates are numbered in the order they were given. Numbers agree with `SimulatorCost.evaluate` on the
    finished plan to rounding. Memory is not checked here.

    Args:
        task: the task.
        predictor: the oracle's networks.
        known: encoded shards of the task.
        candidates: shards that can be placed; the devices they name are ignored.

    Attributes:
        candidates: shards by number.
        devices: of every candidate, `UNPLACED` where it is on none, shape (C,).
        latents: of every candidate, shape (C, 32).
        widths: columns of every candidate, shape (C,).
        predictor: the oracle's networks, for searches that evaluate them on their own.
    """

    def __init__(
        self, task: ShardingTask, predictor: OraclePredictor, known: EncodedShards, candidates: Sequence[Shard]
    ) -> None:
        self._task, self.predictor, self._known = task, predictor, known
        self.candidates: list[Shard] = []
        self.devices: Ints = np.zeros(0, dtype=np.int64)
        self.latents: Floats = np.zeros((0, LATENT))
        self.widths: Floats = np.zeros(0)
        self._counts: Ints = np.zeros(task.num_devices, dtype=np.int64)
        self.extend(candidates)
        self._sums: Floats = np.zeros((task.num_devices, LATENT))

    def extend(self, shards: Sequence[Shard]) -> list[int]:
        """Add candidates, encoded together; return their numbers."""
        if not shards:
            return []
        positions = self._known.positions(shards)
        latents = self._known.encoded[positions][:, 0]
        first = len(self.candidates)
        self.candidates += shards
        self.devices = np.concatenate([self.devices, np.full(len(shards), UNPLACED)])
        self.latents = np.concatenate([self.latents, latents])
        self.widths = np.concatenate([self.widths, [float(shard.num_columns) for shard in shards]])
        return list(range(first, len(self.candidates)))

    def copy(self) -> PlacementState:
        """Return an independent state with the same placement."""
        other = object.__new__(PlacementState)
        other.__dict__.update(self.__dict__)
        other.candidates = list(self.candidates)
        for name in ("devices", "_counts", "_sums"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def add(self, candidate: int, device: int) -> None:
        """Put a candidate on a device.

        Raises:
            InputError: no such candidate or device, or the candidate is on a device already.
        """
        self._check(candidate, device)
        if self.devices[candidate] != UNPLACED:
            raise InputError(f"candidate {candidate} is on device {self.devices[candidate]}: remove it first")
        self.devices[candidate] = device
        self._sums[device] += self.latents[candidate]
        self._counts[device] += 1

    def remove(self, candidate: int) -> None:
        """Take a candidate off its device.

        Raises:
            InputError: no such candidate, or it is on no device.
        """
        self._check(candidate, 0)
        device = int(self.devices[candidate])
        if device == UNPLACED:
            raise InputError(f"candidate {candidate} is on no device")
        self.devices[candidate] = UNPLACED
        self._counts[device] -= 1
        # Summed anew: what subtraction leaves of large latents would drown small ones.
        self._sums[device] = self.latents[self.devices == device].sum(axis=0)

    def what_if(self, candidates: npt.ArrayLike, devices: npt.ArrayLike) -> Floats:
        """Predict compute of devices with one candidate more, for many hypothetical placements in one call.

        Args:
            candidates: numbers, shape (n,).
            devices: where each would go, shape (n,).

        Returns:
            Forward and backward ms of that device with that candidate, shape (n, 2). Nothing is placed.
        """
        sums = self._sums[np.asarray(devices, dtype=np.int64)] + self.latents[np.asarray(candidates, dtype=np.int64)]
        return self.predictor.head_ms(sums)

    def compute_ms(self) -> Floats:
        """Return forward and backward compute of every device, shape (D, 2); an empty one takes none."""
        return self._head(self._sums, self._counts)

    def per_device(self) -> Floats:
        """Return all four phases of every device as placed so far, in the order of `PHASES`, shape (D, 4)."""
        placed = self.devices != UNPLACED
        widths: Floats = np.zeros((1, self._task.num_devices))
        np.add.at(widths[0], self.devices[placed], self.widths[placed])
        phases: Floats = self._phases(self.compute_ms()[None], widths)[0]
        return phases

    def total(self) -> float:
        """Return what the slowest device takes in ms as placed so far."""
        return float(self.per_device().sum(axis=1).max())

    def totals(self, placements: npt.ArrayLike) -> Floats:
        """Predict many whole placements in one call, whatever is placed here.

        Args:
            placements: device of every candidate, `UNPLACED` for none, shape (P, C).

        Returns:
            What the slowest device takes in ms, shape (P,).
        """
        where = np.asarray(placements, dtype=np.int64)
        devices = self._task.num_devices
        sums = np.zeros((len(where), devices, LATENT))
        counts = np.zeros((len(where), devices), dtype=np.int64)
        widths = np.zeros((len(where), devices))
        for device in range(devices):
            here = (where == device).astype(np.float64)
            sums[:, device], widths[:, device] = here @ self.latents, here @ self.widths
            counts[:, device] = here.sum(axis=1)
        compute = self._head(sums.reshape(-1, LATENT), counts.ravel()).reshape(len(where), devices, 2)
        return np.asarray(self._phases(compute, widths).sum(axis=-1).max(axis=-1), dtype=np.float64)

    def compute_of(self, sums: Floats) -> Floats:
        """Predict compute of any device contents from added `latents`, for searches that keep sums themselves.

        Args:
            sums: each of at least one candidate, shape (G, 32).

        Returns:
            Forward and backward ms, shape (G, 2).
        """
        return self.predictor.head_ms(sums)

    def totals_of(self, compute_ms: Floats, widths: Floats) -> Floats:
        """Add communication to known compute of whole placements.

        Args:
            compute_ms: forward plus backward compute of every device, shape (P, D).
            widths: columns of every device, shape (P, D).

        Returns:
            What the slowest device takes in ms, shape (P,).
        """
        comm = exchange_times(self.predictor, self._task, compute_ms, widths)
        return np.asarray((compute_ms + comm.forward_ms + comm.backward_ms).max(axis=-1), dtype=np.float64)

    def _head(self, sums: Floats, counts: Ints) -> Floats:
        ms = np.zeros((len(sums), 2))
        busy = counts > 0
        if busy.any():
            ms[busy] = self.predictor.head_ms(sums[busy])
        return ms

    def _phases(self, compute: Floats, widths: Floats) -> Floats:
        """Add communication to compute of shape (P, D, 2), giving (P, D, 4)."""
        comm = exchange_times(self.predictor, self._task, compute.sum(axis=-1), widths)
        phases = {
            "forward_compute": compute[..., 0], "forward_comm": comm.forward_ms,
            "backward_comm": comm.backward_ms, "backward_compute": compute[..., 1],
        }  # fmt: skip
        return np.stack([phases[name] for name in PHASES], axis=-1)

    def _check(self, candidate: int, device: int) -> None:
        if not 0 <= candidate < len(self.candidates):
            raise InputError(f"candidate {candidate}: there are candidates 0 to {len(self.candidates) - 1}")
        if not 0 <= device < self._task.num_devices:
            raise InputError(f"device {device}: the task has devices 0 to {self._task.num_devices - 1}")
