"""One rank of a collective group."""

from __future__ import annotations

import datetime
import gc
import time
from typing import Any

import torch
import torch.distributed as dist

from shardgym.child import Handler
from shardgym.costs.fbgemm.communication import RankTiming

#: Seconds from agreeing on a start to the start, so that all ranks know it in time.
_LEAD_S = 0.002


class Rank:
    """Answers the group's messages.

    Args:
        device: where the exchanged values live.
        clock_group: a gloo group of all ranks, for agreeing on a start.
    """

    def __init__(self, device: torch.device, clock_group: Any) -> None:
        self._device = device
        self._clock_group = clock_group

    def __call__(self, job: RankTiming) -> list[float]:
        """Return, for each iteration, the ms from this rank's start to the end of its part of the exchange."""
        dtype = torch.float16 if job.precision == "fp16" else torch.float32
        outgoing = torch.ones(sum(job.send), dtype=dtype, device=self._device)
        incoming = torch.empty(sum(job.receive), dtype=dtype, device=self._device)
        gc.disable()
        try:
            times = [self._once(job, outgoing, incoming) for _ in range(job.warmups + job.iterations)]
        finally:
            gc.enable()
        return times[job.warmups :]

    def _once(self, job: RankTiming, outgoing: torch.Tensor, incoming: torch.Tensor) -> float:
        """Sleep until the common start plus this rank's offset; the sleep itself does not count."""
        ready = self._agree_on_start() + job.offset_ms / 1e3
        time.sleep(max(0.0, ready - time.perf_counter()))
        start = time.perf_counter()
        dist.all_to_all_single(incoming, outgoing, job.receive, job.send)
        self._synchronize()
        return (time.perf_counter() - start) * 1e3

    def _agree_on_start(self) -> float:
        """Return a moment in the near future, the same for all ranks, on the monotonic clock that they share."""
        moment = torch.tensor([time.perf_counter() + _LEAD_S], dtype=torch.float64)
        dist.all_reduce(moment, op=dist.ReduceOp.MAX, group=self._clock_group)
        return float(moment.item())

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Join the group.

    Args:
        settings: "rank", "world_size", "device", "file" (for torch's file rendezvous) and "timeout_s".
    """
    cuda = settings["device"] == "cuda"
    torch.set_num_threads(1)
    device = torch.device("cuda", settings["rank"]) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{settings['file']}",
        rank=settings["rank"],
        world_size=settings["world_size"],
        timeout=datetime.timedelta(seconds=settings["timeout_s"]),
    )
    clock_group = dist.new_group(backend="gloo") if cuda else dist.group.WORLD
    gc.collect()
    gc.freeze()
    return Rank(device, clock_group), {}
