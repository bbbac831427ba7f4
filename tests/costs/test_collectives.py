"""The measured all-to-all: every device sends what it owes, offsets are waited for, failures end only one exchange."""

import os
import random
import signal
import threading

import numpy as np
import pytest

from shardgym.costs.fbgemm import communication
from shardgym.costs.fbgemm.communication import AllToAll, CollectiveGroup, time_all_to_alls
from shardgym.errors import MeasurementError


@pytest.fixture(scope="module")
def group():
    processes = CollectiveGroup(3, "cpu", timeout_s=60)
    yield processes
    processes.close()


def exchange(widths, *, offsets=(0.0, 0.0, 0.0), backward=False, batch=8, precision="fp32"):
    return AllToAll(tuple(widths), batch, precision, tuple(offsets), backward)


def pids(group):
    return [rank.pid for rank in group._ranks]


def kill_and_see(pid):
    """Kill a rank and wait until it is gone, without taking its exit status from its owner."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_forward_each_device_owes_every_peer_the_rows_of_its_samples():
    # 8 samples over 3 devices: 3, 3, 2; device 0 holds 4 columns, device 1 none, device 2 eight.
    assert exchange([4, 0, 8]).elements().tolist() == [[12, 12, 8], [0, 0, 0], [24, 24, 16]]


def test_backward_goes_the_same_way_in_reverse():
    forward, backward = exchange([4, 0, 8]), exchange([4, 0, 8], backward=True)
    assert backward.elements().tolist() == forward.elements().T.tolist()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_times_are_positive_for_every_device_and_iteration(group, precision):
    times = group.time(exchange([4, 0, 8], precision=precision), warmups=1, iterations=4)
    assert times.shape == (4, 3)
    assert (times > 0).all()


def test_a_device_that_starts_early_waits_for_the_late_one(group):
    times = group.time(exchange([8, 8, 8], offsets=(0.0, 0.0, 80.0)), warmups=1, iterations=3)
    waited = np.median(times, axis=0)
    assert min(waited[0], waited[1]) > 60
    assert waited[2] < 60


def test_many_exchanges_are_timed_in_rounds(group):
    first, second = exchange([4, 4, 4]), exchange([4, 0, 8], backward=True)
    effort = {"rounds": 2, "warmups": 0, "iterations": 2}
    times, failed = time_all_to_alls(group, [first, second, first], rng=random.Random(0), **effort)
    assert failed == {}
    assert {e: t.shape for e, t in times.items()} == {first: (2, 3), second: (2, 3)}


def test_a_rank_that_dies_at_work_is_named_and_the_group_starts_anew(group):
    group.time(exchange([4, 4, 4]), 0, 1)
    before = pids(group)
    killer = threading.Timer(0.5, os.kill, (before[1], signal.SIGKILL))
    killer.start()
    with pytest.raises(MeasurementError, match=r"device 1: worker was killed by signal 9"):
        group.time(exchange([4, 4, 4], offsets=(0.0, 3000.0, 0.0)), 0, 1)
    killer.join()
    assert group.time(exchange([4, 4, 4]), 0, 1).shape == (1, 3)
    assert set(before).isdisjoint(pids(group))


class Rank:
    """A process that counts as dead from the given look on."""

    def __init__(self, dies_at):
        self.looks, self._dies_at = 0, dies_at

    @property
    def dead(self):
        self.looks += 1
        return self.looks >= self._dies_at

    def cause_of_death(self):
        return "worker was killed by signal 9"


def test_the_rank_that_died_is_named_although_a_peer_complained_first(monkeypatch):
    """Its socket closes before it can be waited for."""
    group = CollectiveGroup(3, "cpu", 1.0)
    monkeypatch.setattr(group, "_ranks", [Rank(10**9), Rank(3), Rank(10**9)])
    assert group._culprit(0, "connection closed by peer") == "device 1: worker was killed by signal 9"


def test_a_complaint_of_one_that_is_not_about_a_death_is_its_own(monkeypatch):
    monkeypatch.setattr("shardgym.costs.fbgemm.communication._NOTICE_S", 0.05)
    group = CollectiveGroup(2, "cpu", 1.0)
    monkeypatch.setattr(group, "_ranks", [Rank(10**9), Rank(10**9)])
    assert group._culprit(1, "out of memory") == "device 1: out of memory"


@pytest.mark.slow
def test_a_rank_that_died_idle_fails_nobodys_exchange(group):
    group.time(exchange([4, 4, 4]), 0, 1)
    before = pids(group)
    kill_and_see(before[0])
    assert group.time(exchange([4, 4, 4]), 0, 1).shape == (1, 3)
    assert set(before).isdisjoint(pids(group))


def test_a_death_that_only_the_sender_notices_fails_nobodys_exchange(group, monkeypatch):
    group.time(exchange([4, 4, 4]), 0, 1)
    before = pids(group)
    kill_and_see(before[2])
    monkeypatch.setattr(group, "_end_if_unhealthy", lambda: None)
    assert group.time(exchange([4, 4, 4]), 0, 1).shape == (1, 3)
    assert set(before).isdisjoint(pids(group))


@pytest.mark.slow
def test_a_rank_that_was_stopped_idle_fails_nobodys_exchange(group, monkeypatch):
    monkeypatch.setattr(communication, "_IDLE_S", 0.0)
    monkeypatch.setattr(communication, "_PING_S", 1.0)
    group.time(exchange([4, 4, 4]), 0, 1)
    before = pids(group)
    os.kill(before[1], signal.SIGSTOP)
    assert group.time(exchange([4, 4, 4]), 0, 1).shape == (1, 3)
    assert set(before).isdisjoint(pids(group))


def test_an_exchange_larger_than_memory_is_refused_with_bytes(group):
    enormous = exchange([2**40, 4, 4], batch=2**20)
    with pytest.raises(MeasurementError, match=r"needs \d+ bytes of memory, \d+ bytes are available"):
        group.time(enormous, 0, 1)


def test_only_the_failed_exchange_is_lost(group):
    good, bad = exchange([4, 4, 4]), exchange([2**40, 4, 4], batch=2**20)
    effort = {"rounds": 2, "warmups": 0, "iterations": 1}
    times, failed = time_all_to_alls(group, [good, bad], rng=random.Random(0), **effort)
    assert set(times) == {good}
    assert set(failed) == {bad}


def test_a_rank_that_hangs_is_killed_after_the_time_limit(group, monkeypatch):
    """The last test: it leaves no rank to the others."""
    group.time(exchange([4, 4, 4]), 0, 1)
    monkeypatch.setattr(group, "_timeout_s", 1.5)
    os.kill(pids(group)[1], signal.SIGSTOP)
    with pytest.raises(MeasurementError, match=r"took longer than 1\.5 s"):
        group.time(exchange([4, 4, 4]), 0, 1)
    assert pids(group) == []
