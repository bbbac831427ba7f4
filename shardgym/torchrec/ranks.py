"""The ranks of a job that torchrun started, and work of the first rank on behalf of all."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from shardgym.errors import InputError, ShardGymError, error_text
from shardgym.machine import available_bytes
from shardgym.tasks.topology import Topology

#: Seconds between two signs of life. Groups wait for some minutes by default before they give up.
_SIGN_OF_LIFE_S = 1.0
#: How long ranks of a job of ours wait for each other.
_TIMEOUT = timedelta(minutes=10)
#: What torchrun tells each process.
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

T = TypeVar("T")


class World(NamedTuple):
    """This process among the ranks that torchrun started."""

    rank: int
    size: int
    local_size: int  #: ranks per machine
    device: torch.device  #: a GPU of its own if the machine has one per rank, else the CPU

    @classmethod
    def of_environment(cls) -> World:
        """Read torchrun's environment variables; raises `InputError` if torchrun did not start this process."""
        missing = [name for name in _VARIABLES if not os.environ.get(name, "").isdigit()]
        if missing:
            raise InputError(
                f"{missing[0]} is not in the environment: start the command with torchrun, such as "
                "'torchrun --nproc-per-node 2 -m shardgym compare ...'"
            )
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in _VARIABLES)
        on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= local_size
        return cls(rank, size, local_size, torch.device("cuda", local_rank) if on_gpus else torch.device("cpu"))

    @property
    def backend(self) -> str:
        """Backend of collectives, "nccl" or "gloo"."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    def place(self, rank: int) -> str:
        """Return TorchRec's name of the device of any rank, e.g. "rank:9/cuda:1"."""
        return f"rank:{rank}/" + (f"cuda:{rank % self.local_size}" if self.device.type == "cuda" else "cpu")

    @contextmanager
    def joined(self) -> Iterator[Store]:
        """Create the process group of the job while the block runs; yields the store that its ranks share.

        After an error, the group is not destroyed, because that would wait for ranks that hang.
        """
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        store, _, _ = next(rendezvous("env://", timeout=_TIMEOUT))
        dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.size, timeout=_TIMEOUT)
        yield store
        dist.destroy_process_group()

    def topology(self, preset: str | None) -> Topology:
        """Return the devices of the job; all ranks call this together.

        Args:
            preset: preset of the devices, a key of `PRESETS`; on CPUs "cpu", with machines as fast domains, when None.

        Returns:
            The preset with the memory of the smallest device: all of a GPU, or a CPU rank's share of its machine.

        Raises:
            InputError: GPUs without a preset.
        """
        on_gpus = self.device.type == "cuda"
        if on_gpus and preset is None:
            name = torch.cuda.get_device_properties(self.device).name
            raise InputError(f"ranks are on '{name}': give --topology, which describes it and its links")
        own = torch.cuda.mem_get_info(self.device)[1] if on_gpus else available_bytes() // self.local_size
        sizes: list[Any] = [None] * self.size
        dist.all_gather_object(sizes, own)
        found = Topology.preset(preset or "cpu", self.size, min(sizes))
        return dataclasses.replace(found, fast_domain_size=self.local_size) if preset is None else found


class _Answer(NamedTuple):
    """A message of the first rank to the others: a sign of life, its result, or its error."""

    done: bool = False
    result: Any = None
    error: type[ShardGymError] | None = None
    text: str = ""


def from_first_rank(work: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Do work on the first rank of a group, and return its result, or raise its error, on all ranks.

    Because a rank that waits in a collective longer than its group's timeout ends the job, the first rank works in a
    thread and broadcasts a sign of life every second. If the first rank ends, the others end after the timeout.
    """
    if dist.get_rank(group) != 0:
        answer = _Answer()
        while not answer.done:
            answer = _received(group)
        if answer.error is not None:
            raise _made(answer.error, answer.text)
        found: T = answer.result
        return found
    planning: Future[T] = Future()

    def run() -> None:
        try:
            planning.set_result(work())
        except BaseException as error:  # raised by the thread that waits
            planning.set_exception(error)

    threading.Thread(target=run, name="shardgym planning", daemon=True).start()
    cause: BaseException | None
    try:
        while not wait([planning], _SIGN_OF_LIFE_S).done:
            _send(_Answer(), group)
        cause = planning.exception()
    except KeyboardInterrupt as error:
        cause = error
    if cause is None:
        _send(_Answer(done=True, result=planning.result()), group)
        return planning.result()
    if isinstance(cause, ShardGymError):
        kind = type(cause)
        text = str(cause)
    else:
        kind = ShardGymError
        text = f"planning failed on the first rank: {error_text(cause)}"
    _send(_Answer(done=True, error=kind, text=text), group)
    if isinstance(cause, ShardGymError) or not isinstance(cause, Exception):
        raise cause
    raise _made(kind, text) from cause


def _send(answer: _Answer, group: dist.ProcessGroup) -> None:
    dist.broadcast_object_list([answer], src=dist.get_global_rank(group, 0), group=group)


def _received(group: dist.ProcessGroup) -> _Answer:
    answers: list[Any] = [None]
    try:
        dist.broadcast_object_list(answers, src=dist.get_global_rank(group, 0), group=group)
    except RuntimeError as error:
        raise ShardGymError(
            f"the first rank, which plans, no longer answers: see its log for why it ended ({error_text(error)})"
        ) from error
    answer: _Answer = answers[0]
    return answer


def _made(kind: type[ShardGymError], text: str) -> ShardGymError:
    """Return an error of a type with a text, as constructors of errors build texts from several arguments."""
    failure = kind.__new__(kind)
    failure.args = (text,)
    return failure
