"""Which exchanges are measured."""

from __future__ import annotations

import pytest

from shardgym.collection.exchanges import ExchangeSampler
from shardgym.collection.setup import SETUPS

SAMPLER = ExchangeSampler(SETUPS["cpu"], seed=0)


@pytest.fixture(scope="module")
def specs():
    return [SAMPLER.exchange("oracle", number, 2 + number % 7) for number in range(700)]


def test_every_device_has_a_width_and_an_offset(specs):
    for number, spec in enumerate(specs):
        assert len(spec.widths) == len(spec.offsets_ms) == 2 + number % 7
        assert any(spec.widths)
        assert all(width % 4 == 0 for width in spec.widths)
        assert (spec.batch_size, spec.element_bytes) == (8192, 4)


def test_offsets_begin_at_zero_and_some_samples_are_aligned(specs):
    assert all(min(spec.offsets_ms) == 0 and max(spec.offsets_ms) < 160 for spec in specs)
    assert 0.1 < sum(not any(spec.offsets_ms) for spec in specs) / len(specs) < 0.4
    assert max(max(spec.offsets_ms) for spec in specs) > 30


def test_balance_reaches_from_even_to_everything_on_one_device(specs):
    shares = [max(spec.widths) * len(spec.widths) / sum(spec.widths) for spec in specs]
    assert min(shares) < 1.02
    assert max(shares) > 3


def test_the_backward_exchange_is_aligned_and_the_forward_one_is_not():
    spec = next(s for s in (SAMPLER.exchange("judge", n, 3) for n in range(20)) if any(s.offsets_ms))
    assert spec.exchange(backward=False).offsets_ms == spec.offsets_ms
    assert spec.exchange(backward=True).offsets_ms == (0.0, 0.0, 0.0)


def test_oracle_and_judge_share_no_exchange(specs):
    judged = {SAMPLER.exchange("judge", number, 2 + number % 7).digest for number in range(300)}
    assert not judged & {spec.digest for spec in specs}


def test_a_sample_is_the_same_whenever_it_is_asked_for(specs):
    assert ExchangeSampler(SETUPS["cpu"], seed=0).exchange("oracle", 5, 7) == specs[5]
