"""Work of the first rank of a process group that all others wait for, however long it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from shardgym.errors import ShardGymError, error_text

#: Seconds between two signs of life. Groups wait for some minutes by default before they give up.
SIGN_OF_LIFE_S = 1.0


class _Answer(NamedTuple):
    """What the first rank tells the others: that it works on; or its result; or how it failed."""

    done: bool = False
    result: Any = None
    error: type[ShardGymError] | None = None
    text: str = ""


def from_first_rank(work: Callable[[], Any], group: dist.ProcessGroup) -> Any:
    """Do work on the first rank of a group, and return its result on all ranks.

    Ranks that wait in a collective end after the timeout of their group, and with them the job. So work is done in a
    thread, while the first rank broadcasts a sign of life every second: the timeout is for this second, not for the
    work. Where the first rank ends, the others end after the timeout.

    Args:
        work: its result can be pickled.
        group: of processes that all call this.

    Raises:
        ShardGymError: work failed, in the same words on every rank, and as its own class where it is one of ours; or no
            more was heard of the first rank.
    """
    if dist.get_rank(group) != 0:
        answer = _Answer()
        while not answer.done:
            answer = _received(group)
        if answer.error is not None:
            raise _made(answer.error, answer.text)
        return answer.result
    done = threading.Event()
    results: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised by the thread that waits
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="shardgym planning", daemon=True).start()
    try:
        while not done.wait(SIGN_OF_LIFE_S):
            _send(_Answer(), group)
    except KeyboardInterrupt as error:
        failures.append(error)
    if not failures:
        _send(_Answer(done=True, result=results[0]), group)
        return results[0]
    cause = failures[0]
    is_ours = isinstance(cause, ShardGymError)
    kind = type(cause) if isinstance(cause, ShardGymError) else ShardGymError
    text = str(cause) if is_ours else f"planning failed on the first rank: {error_text(cause)}"
    _send(_Answer(done=True, error=kind, text=text), group)
    if is_ours or not isinstance(cause, Exception):
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
            f"no more was heard of the first rank, which plans: see its log for why it ended ({error_text(error)})"
        ) from error
    answer: _Answer = answers[0]
    return answer


def _made(kind: type[ShardGymError], text: str) -> ShardGymError:
    """Return an error with a text: errors build theirs from several arguments."""
    failure = kind.__new__(kind)
    failure.args = (text,)
    return failure
