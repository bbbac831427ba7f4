"""The synthetic pools: what their data promise, held against what is published of the files that they stand for."""

import math

import numpy as np
import pytest

from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.pools import load_pool

#: Batch, ids and distinct rows of all tables, and the share of the distinct rows by how often they are looked up:
#: github.com/facebookresearch/dlrm_datasets, embedding_bag/*/locality_stats.txt, fbgemm_t856_bs65536.pt (2021) and
#: fbgemm_t788_bs131072_0.pt (2022).
PUBLISHED = {
    "synthetic-2021": (
        65_536, 887_017_990, 128_435_723,
        (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, *[0.0] * 7),
    ),
    "synthetic-2022": (
        131_072, 1_405_163_864, 110_259_238,
        (0.342, 0.144, 0.149, 0.138, 0.112, 0.068, 0.029, 0.010, 0.004, 0.002, 0.001, 0.001, *[0.0] * 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_stored_histograms_add_up_to_the_published_statistics(name):
    """From the files alone: expected distinct rows are ids over the mean accesses of a row."""
    pool = load_pool(name)
    batch_size, ids, distinct, row_shares = PUBLISHED[name]
    assert pool.batch_size == batch_size
    assert all(abs(math.fsum(table.reuse_histogram) - 1) < 1e-9 for table in pool)
    shares = np.array([table.reuse_histogram for table in pool])
    # The middle of a bin on a logarithmic scale is near the mean accesses of its rows.
    centres = np.array([1, 2, *(2.0 ** np.arange(1, 16) * 1.45)])
    own_ids = np.array([table.pooling_factor for table in pool]) * batch_size
    assert own_ids.sum() == pytest.approx(ids, rel=1e-4)
    rows = own_ids / (shares @ centres)
    assert rows.sum() == pytest.approx(distinct, rel=0.05)
    assert rows @ shares / rows.sum() == pytest.approx(np.array(row_shares), abs=0.02)


@pytest.mark.parametrize(("pool", "index"), [("synthetic-2021", 1), ("synthetic-2021", 555), ("synthetic-2022", 2)])
def test_a_stored_histogram_is_that_of_a_real_draw(pool, index):
    table = load_pool(pool)[index]
    counts = ReuseCounts.of(draw_bags(table, load_pool(pool).batch_size, seed=0).indices)
    assert table.reuse_histogram == pytest.approx(counts.row_shares(), abs=5e-4)
