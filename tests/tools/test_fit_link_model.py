"""The fit of the link model finds a known one again; without root it says so and fits nothing."""

import sys

import numpy as np
import pytest

from shardgym.costs.link_model import LinkModel


def test_a_known_model_is_found_again_and_held_against_exchanges_it_has_not_seen(tool):
    known = LinkModel(0.4, 0.2, 1.1, "toy", 0.0, 0.0, 1)
    rng = np.random.default_rng(0)
    exchanges = [
        tool.draw(kind, devices, rates, rng)
        for kind in tool.KINDS for devices in (2, 4) for rates in ((2.5e8, 2.5e8), (5e7, 5e7)) for _ in range(4)
    ]  # fmt: skip
    for exchange in exchanges:
        over_ms = tool.predicted_ms(known, exchange)
        exchange.exit_ms = [over_ms, *[0.8 * over_ms] * (len(exchange.sent_bytes) - 1)]
    found = tool.fit(exchanges)
    assert (found.error, found.worst_tenth) < (0.01, 0.01)
    assert found.wire_factor == pytest.approx(known.wire_factor, rel=0.01)
    assert found.start_ms + found.peer_ms == pytest.approx(known.start_ms + known.peer_ms, rel=0.05)
    assert found.exchanges == len(exchanges) // 2
    # Errors are of the half that is not fitted.
    for kind in tool.KINDS:
        for other in [e for e in exchanges if e.kind == kind][1::2]:
            other.exit_ms = [1.2 * ms for ms in other.exit_ms]
    assert tool.fit(exchanges).error == pytest.approx(1 - 1 / 1.2, rel=0.01)


def test_without_root_it_says_so_and_fits_nothing(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "why_not", lambda: "it takes root")
    monkeypatch.setattr(sys, "argv", ["fit_link_model.py"])
    tool.main()
    assert capsys.readouterr().out == "skipped: it takes root\n"
