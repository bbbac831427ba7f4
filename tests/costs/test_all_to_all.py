"""All-to-alls of single sends and receives: everything arrives where it belongs, whatever the counts and groups."""

import multiprocessing

import pytest

SIZE = 4


def value(sender, receiver, place):
    """What a rank sends: no two are equal."""
    return 1000 * sender + 100 * receiver + place


def count(sender, receiver, number):
    """How many values; some pairs have nothing for each other, and ranks keep some of their own."""
    return (sender * 3 + receiver * 5 + number) % 4


def run_rank(rank, folder):
    import torch
    import torch.distributed as dist

    from shardgym.costs.fbgemm.all_to_all import AllToAll, exchange

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=SIZE)
    halves = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    own_half = next(half for half in halves if dist.get_rank(half) >= 0)
    members = dist.get_process_group_ranks(own_half)

    def all_to_all(number, ranks, dtype):
        counts_to = [count(rank, peer, number) for peer in ranks]
        counts_from = [count(peer, rank, number) for peer in ranks]
        sent = [value(rank, peer, place) for peer, n in zip(ranks, counts_to, strict=True) for place in range(n)]
        received = torch.full((sum(counts_from),), -1, dtype=dtype)
        return AllToAll(received, torch.tensor(sent, dtype=dtype), counts_from, counts_to)

    everyone = list(range(SIZE))
    first, second = all_to_all(0, everyone, torch.int64), all_to_all(1, everyone, torch.float32)
    exchange(first, second)
    half = all_to_all(2, members, torch.float32)
    exchange(half, group=own_half)
    again = all_to_all(3, everyone, torch.int64)
    exchange(again)
    dist.destroy_process_group()
    return members, [one.received.tolist() for one in (first, second, half, again)]


@pytest.mark.measured
def test_everything_arrives_where_it_belongs(tmp_path):
    with multiprocessing.get_context("spawn").Pool(SIZE) as pool:
        ranks = pool.starmap(run_rank, [(rank, tmp_path) for rank in range(SIZE)], chunksize=1)
    for rank, (members, received) in enumerate(ranks):
        assert members == ([0, 2] if rank in (0, 2) else [1, 3])
        for number, found in enumerate(received):
            senders = members if number == 2 else range(SIZE)
            expected = [value(peer, rank, place) for peer in senders for place in range(count(peer, rank, number))]
            assert found == expected
