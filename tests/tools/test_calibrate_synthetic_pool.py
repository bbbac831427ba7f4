"""The script that made the synthetic pool: its parts, and that the shipped data are what it makes."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from shardgym.ids import ReuseCounts, draw_bags
from shardgym.pools.load import SYNTHETIC_BATCH, synthetic_tables
from shardgym.table import EmbeddingTable, ZipfIds

pytest.importorskip("scipy", reason="the calibration script needs the extra 'dev'")

FOLDER = Path(__file__).parents[2] / "tools"


@pytest.fixture
def calibrate(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("calibrate_synthetic_pool")


@pytest.mark.parametrize(
    ("s", "q", "rows", "pooling"), [(1.0, 0.0, 300, 20.0), (1.1, 100.0, 300_000, 1.0), (0.6, 5.0, 50_000, 10.0)]
)
def test_expected_counts_are_those_of_a_real_draw(calibrate, s, q, rows, pooling):
    expected = calibrate.expected_counts(s, q, rows, pooling * 65_536)
    table = EmbeddingTable("t", rows, 4, pooling, ZipfIds(s=s, q=q, lengths="poisson"))
    drawn = ReuseCounts.of(draw_bags(table, 65_536, seed=0).indices)
    assert (np.abs(drawn.rows - expected[0]) < 6 * np.sqrt(expected[0] + 1) + 0.002 * rows).all()
    assert drawn.accesses.sum() == pytest.approx(expected[1].sum(), rel=0.01)
    assert np.abs(drawn.accesses - expected[1]).max() < 0.01 * drawn.accesses.sum()


def test_the_search_reaches_sums_that_a_choice_has(calibrate):
    choose = calibrate.choose
    rng = np.random.default_rng(0)
    contributions = rng.random((200, 20, 3)) / 200
    target = contributions[np.arange(200), rng.integers(20, size=200)].sum(axis=0)
    chosen = choose(contributions, target, rng)
    assert np.abs(contributions[np.arange(200), chosen].sum(axis=0) - target).max() < 0.0005


def test_the_search_says_when_no_choice_has_the_sums(calibrate):
    choose = calibrate.choose
    with pytest.raises(RuntimeError, match=r"off by 0\.5"):
        choose(np.full((2, 2, 1), 0.25), np.array([1.0]), np.random.default_rng(0))


def test_rounded_shares_still_sum_to_one(calibrate):
    rounded = calibrate.rounded((1 / 3, 1 / 3, 1 / 3))
    assert rounded == (0.3334, 0.3333, 0.3333)


@pytest.mark.parametrize("pool", SYNTHETIC_BATCH)
def test_the_shipped_tables_are_drawn_by_the_script(calibrate, pool):
    recipe = calibrate.RECIPES[pool]
    rng = np.random.default_rng(recipe.seed)
    rows, pooling = calibrate.draw_population(recipe, rng)
    s, q = calibrate.draw_candidates(rows, rng)
    tables = synthetic_tables(pool)
    assert len(tables) == recipe.goal.num_tables
    assert recipe.goal.batch_size == SYNTHETIC_BATCH[pool]
    for i, table in enumerate(tables):
        assert (table.name, table.num_embeddings, table.pooling_factor) == (
            f"{recipe.prefix}{i:03}",
            rows[i],
            pooling[i],
        )
        assert ((s[i] == table.ids.s) & (q[i] == table.ids.q)).any()
