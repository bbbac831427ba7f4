"""The host's lead over a GPU, with attempts that are made up."""

import pytest

from shardgym.costs.fbgemm.lead import MOST, PATIENCE, Lead


def attempts_that_need(least, seen):
    """The GPU waits with fewer flushes than `least`; an attempt takes as many ms as it has flushes."""

    def attempt(flushes):
        seen.append(flushes)
        return flushes < least, (float(flushes), 0.0)

    return attempt


def test_a_step_is_repeated_until_the_gpu_does_not_wait():
    seen = []
    assert Lead().timed(attempts_that_need(5, seen)) == (8.0, 0.0)
    assert seen == [1, 2, 4, 8]


def test_the_lead_is_kept_for_the_next_step_and_shrinks_while_it_suffices():
    lead, seen = Lead(), []
    for _ in range(3 * PATIENCE + 2):
        lead.timed(attempts_that_need(6, seen))
    assert seen == [1, 2, 4, *[8] * PATIENCE, *[7] * PATIENCE, *[6] * PATIENCE, 5, 10, 10]


def test_waiting_starts_the_patience_anew():
    lead, seen = Lead(), []
    for least in [6] * (PATIENCE - 1) + [12] + [6] * PATIENCE:
        lead.timed(attempts_that_need(least, seen))
    assert seen == [1, 2, 4, *[8] * PATIENCE, *[16] * PATIENCE, 15]


@pytest.mark.parametrize("steps", [1, 3])
def test_where_no_lead_suffices_the_longest_is_taken(steps):
    lead, seen = Lead(), []
    times = [lead.timed(attempts_that_need(MOST + 1, seen)) for _ in range(steps)]
    assert times == [(float(MOST), 0.0)] * steps
    assert seen == [1, 2, 4, 8, 16, 32, 64, MOST] + [MOST] * (steps - 1)
    assert lead.given_up == steps


@pytest.mark.parametrize("least", [0, 5, MOST])
def test_a_step_in_which_the_gpu_did_not_wait_in_the_end_does_not_count_as_given_up(least):
    lead = Lead()
    for _ in range(3):
        lead.timed(attempts_that_need(least, []))
    assert lead.given_up == 0


def test_one_flush_is_the_least():
    lead = Lead()
    for _ in range(2 * PATIENCE):
        lead.timed(attempts_that_need(0, []))
    assert lead.flushes == 1
