"""The host's lead over a GPU, with attempts that are made up."""

import pytest

from shardgym.costs.fbgemm.cuda import MOST_FLUSHES, PATIENCE, HostLead


def attempts_that_need(least, seen):
    """The GPU waits with fewer flushes than `least`; an attempt takes as many ms as it has flushes."""

    def attempt(flushes):
        seen.append(flushes)
        return flushes < least, (float(flushes), 0.0)

    return attempt


def test_the_lead_is_kept_for_the_next_step_and_shrinks_while_it_suffices():
    lead, seen = HostLead(), []
    for _ in range(3 * PATIENCE + 2):
        lead.timed(attempts_that_need(6, seen))
    assert seen == [1, 2, 4, *[8] * PATIENCE, *[7] * PATIENCE, *[6] * PATIENCE, 5, 10, 10]


def test_waiting_starts_the_patience_anew():
    lead, seen = HostLead(), []
    for least in [6] * (PATIENCE - 1) + [12] + [6] * PATIENCE:
        lead.timed(attempts_that_need(least, seen))
    assert seen == [1, 2, 4, *[8] * PATIENCE, *[16] * PATIENCE, 15]


@pytest.mark.parametrize("steps", [1, 3])
def test_where_no_lead_suffices_the_longest_is_taken(steps):
    lead, seen = HostLead(), []
    times = [lead.timed(attempts_that_need(MOST_FLUSHES + 1, seen)) for _ in range(steps)]
    assert times == [(float(MOST_FLUSHES), 0.0)] * steps
    assert seen == [1, 2, 4, 8, 16, 32, 64, MOST_FLUSHES] + [MOST_FLUSHES] * (steps - 1)
    assert lead.given_up == steps


@pytest.mark.parametrize("least", [0, 5, MOST_FLUSHES])
def test_a_step_in_which_the_gpu_did_not_wait_in_the_end_does_not_count_as_given_up(least):
    lead = HostLead()
    for _ in range(3):
        lead.timed(attempts_that_need(least, []))
    assert lead.given_up == 0
