"""All-to-alls as NCCL makes them: one send and one receive per peer, all under way at once, receives first.

gloo's own all-to-all posts the send to a peer before the receive from it. A rank that comes late finds the peer ready
to receive, writes all its data, and only then says that it is ready itself: between these two, data goes one way at a
time. So an exchange takes up to twice as long, as ranks happen to arrive. Links between GPUs carry both ways
at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist


class AllToAll(NamedTuple):
    """What one rank gives to an all-to-all and gets from it; D ranks."""

    received: torch.Tensor  #: filled rank by rank, flat
    sent: torch.Tensor  #: values for all ranks, rank by rank, flat
    counts_from: Sequence[int]  #: values from each rank, D numbers
    counts_to: Sequence[int]  #: values for each rank, D numbers


def exchange(*all_to_alls: AllToAll, group: dist.ProcessGroup | None = None) -> None:
    """Run all-to-alls, the same on all ranks, all at once, and wait until this rank is through with them.

    Pairs of ranks that have nothing for each other do not wait for each other. NCCL has its own for tensors on a GPU.
    """
    if all_to_alls[0].sent.is_cuda:
        for work in [dist.all_to_all_single(*each, group=group, async_op=True) for each in all_to_alls]:
            work.wait()
        return
    ranks = dist.group.WORLD if group is None else group
    assert ranks is not None
    own = ranks.rank()
    before = [(own - distance) % ranks.size() for distance in range(1, ranks.size())]
    parts = [
        (torch.split(a.received, list(a.counts_from)), torch.split(a.sent, list(a.counts_to))) for a in all_to_alls
    ]
    # The process group's own calls: those of `torch.distributed` check every tensor, which takes longer than a message.
    works = [
        ranks.recv([received[peer]], peer, tag)
        for tag, (received, _) in enumerate(parts)
        for peer in before
        if len(received[peer])
    ]
    works += [
        ranks.send([sent[peer]], peer, tag)
        for tag, (_, sent) in enumerate(parts)
        for peer in reversed(before)
        if len(sent[peer])
    ]
    for received, sent in parts:
        received[own].copy_(sent[own])
    for work in works:
        work.wait()
