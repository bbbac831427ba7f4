"""Published models: their totals are those that their sources state."""

import pytest

from shardgym.tables.pools.load import load_model, model_names
from shardgym.tables.table import UniformIds, ZipfIds

#: Tables, rows, ids per sample, GiB in FP32, as their sources or the sums of their published lists say.
TOTALS = {
    "dlrm-mlperf-v1": (26, 187_767_399, 26, 89.5),
    "dlrm-dcnv2": (26, 204_184_588, 214, 97.4),
    "criteo-kaggle": (26, 33_762_577, 26, 2.0),
    "avazu": (21, 9_449_205, 21, 4.5),
    "dlrm-benchmark": (8, 8_000_000, 800, 1.9),
    "deeprecsys-rm1": (8, 32_000_000, 8 * 80, 3.8),
    "deeprecsys-rm2": (32, 16_000_000, 32 * 120, 3.8),
    "deeprecsys-rm3": (10, 20_000_000, 200, 2.4),
    "deeprecsys-wnd": (27, 27_000_000, 27, 3.2),
    "deeprecsys-mtwnd": (43, 30_500_000, 43, 3.6),
    "deeprecsys-dien": (43, 30_500_000, 43, 3.6),
    "deeprecsys-din": (4, 21_100_000, 12, 2.5),
    "deeprecsys-ncf": (4, 336_000, 4, 0.1),
    "embark-t180": (177, 1_130_980_100, 14_450, 247.1),
    "embark-t200": (200, 831_421_000, 4_550, 386.9),
    "embark-t510": (510, 895_100_000, 2_670, 426.8),
    "embark-t7": (7, 7_430_000_000, 163, 1_661.8),
    # The source counts a table shared by two features once: 55 tables, with 58 features in all.
    "nvidia-tiny": (55, 70_260_160, 58 + 3 * 9, 4.2),
    "nvidia-small": (107, 220_630_300, 116 + 9 * 29, 26.3),
    "nvidia-medium": (311, 664_860_800, 337 + 26 * 49, 206.2),
    "nvidia-large": (612, 2_846_001_000, 669 + 57 * 99, 773.8),
    "nvidia-jumbo": (1_022, 5_722_001_000, 1_097 + 75 * 199, 3_109.5),
    "nvidia-colossal": (2_002, 23_824_001_000, 2_153 + 151 * 299, 22_327.4),
}


@pytest.mark.parametrize("name", model_names())
def test_totals_are_those_of_the_source(name):
    pool = load_model(name).pool
    gib = sum(t.num_embeddings * t.embedding_dim * 4 for t in pool) / 2**30
    totals = (len(pool), sum(t.num_embeddings for t in pool), sum(t.pooling_factor for t in pool), round(gib, 1))
    assert totals == TOTALS[name]


def test_ids_optimisers_and_batches_are_those_stated():
    assert load_model("embark-t7").pool[0].ids == ZipfIds(s=1.1)
    assert load_model("nvidia-tiny").pool[0].ids == ZipfIds(s=1.05, q=0.5)
    dcnv2 = load_model("dlrm-dcnv2")
    assert (dcnv2.pool[0].ids, dcnv2.optimizer, dcnv2.pool.batch_size) == (UniformIds(), "adagrad", 65_536)
