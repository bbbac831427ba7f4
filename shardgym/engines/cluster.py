"""RayEngine: machines of a Ray cluster.

A worker is an actor. Where jobs measure, it reserves all cores and GPUs of its node, so that a node measures one job at
a time and nothing that Ray knows of runs beside it; otherwise it reserves one core. An actor that is lost, alone or
with its node, is replaced, and its job is done again.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from shardgym.engines.base import A, Engine, J, Losses, OpenedWorker, OpenWorker, checked
from shardgym.errors import InputError, MeasurementError, import_extra, one_line

#: Seconds between two looks at which nodes there are.
_LOOK_S = 1.0
#: Seconds that the head has to answer.
_CONNECT_S = 5.0
#: Seconds that workers have to close.
_CLOSE_S = 10.0
#: Seconds without a worker after which a run gives up.
_START_S = 120.0


class RayEngine(Engine):
    """Does jobs on a Ray cluster that is running, in which every node has shardgym.

    Args:
        workers: how many; None for one per core, or one per node where jobs measure.
        address: of the head, HOST:PORT; None for the cluster of this machine, or of RAY_ADDRESS.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: there is no cluster.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._ray = import_extra("ray", "engine 'ray'", extra="cluster")
        self._workers = workers
        self._joined = not self._ray.is_initialized()
        if not self._joined:
            return
        head = address or os.environ.get("RAY_ADDRESS", "auto")
        try:
            host, colon, port = head.rpartition(":")
            if colon and port.isdecimal():
                # Ray itself tries for minutes.
                socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
            self._ray.init(address=head, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            where = "on this machine" if head == "auto" else f"at {head}"
            raise InputError(
                f"no Ray cluster {where} ({one_line(error)}): start one by 'ray start --head', or take engine 'loky'"
            ) from None

    def run(self, open_worker: OpenWorker[J, A], jobs: Sequence[J], *, alone: bool) -> Iterator[tuple[J, A]]:
        """Yield jobs with their answers; see `Engine.run`."""
        ray = self._ray
        losses = Losses()
        todo = deque(range(len(jobs)))
        opened = ray.put(open_worker)
        #: The node that each actor reserves; None for any.
        actors: dict[Any, str | None] = {}
        starting: dict[Any, Any] = {}
        idle: list[Any] = []
        pending: dict[Any, tuple[int, Any]] = {}
        waited_since = time.monotonic()
        try:
            while todo or pending:
                most = min(len(todo) + len(pending), self._most(alone))
                starting |= self._started(actors, most, alone)
                while todo and idle:
                    number, actor = todo.popleft(), idle.pop()
                    pending[actor.answer.remote(opened, jobs[number])] = number, actor
                done, _ = ray.wait([*pending, *starting], num_returns=1, timeout=_LOOK_S)
                if pending or done:
                    waited_since = time.monotonic()
                elif time.monotonic() - waited_since > _START_S:
                    raise MeasurementError(
                        f"no node of the Ray cluster took a worker in {_START_S:.0f} s: others have its cores "
                        "(ray status), or shardgym is not installed there"
                    )
                for ref in done:
                    try:
                        answer = ray.get(ref)
                    except ray.exceptions.RayActorError as error:
                        number, actor = pending.pop(ref, (-1, starting.pop(ref, None)))
                        del actors[actor]
                        losses.add(number, "the start" if number < 0 else jobs[number], one_line(error))
                        if number >= 0:
                            todo.appendleft(number)
                        continue
                    if ref in starting:
                        idle.append(starting.pop(ref))
                        continue
                    number, actor = pending.pop(ref)
                    idle.append(actor)
                    yield jobs[number], checked(answer)
        finally:
            ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=_CLOSE_S)
            for actor in actors:
                ray.kill(actor)
            if self._joined:
                ray.shutdown()

    def _nodes(self) -> dict[str, dict[str, float]]:
        """Return cores and GPUs of the nodes that live and have cores, by node."""
        nodes = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        nodes = {node: resources for node, resources in nodes.items() if resources.get("CPU", 0) >= 1}
        if not nodes:
            raise InputError("the Ray cluster has no node with a core: add one by 'ray start --address HEAD'")
        return nodes

    def _most(self, alone: bool) -> int:
        """Return how many workers there may be."""
        nodes = self._nodes()
        there = len(nodes) if alone else int(sum(resources["CPU"] for resources in nodes.values()))
        return min(there, self._workers or there)

    def _started(self, actors: dict[Any, str | None], most: int, alone: bool) -> dict[Any, Any]:
        """Start actors until there are so many; return them by what says that they have started."""
        worker = self._ray.remote(OpenedWorker)
        on_node = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        starting = {}
        while len(actors) < most:
            options: dict[str, Any] = {"num_cpus": 1}
            node = None
            if alone:
                node, resources = next(of for of in self._nodes().items() if of[0] not in actors.values())
                options = {
                    "num_cpus": resources["CPU"],
                    "num_gpus": resources.get("GPU", 0),
                    "scheduling_strategy": on_node(node, soft=False),
                }
            actor = worker.options(**options).remote()
            actors[actor] = node
            starting[actor.is_open.remote()] = actor
        return starting
