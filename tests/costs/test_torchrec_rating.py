"""TorchRec's rating against what TorchRec itself said, stored and anew, and against sums done by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.torchrec_rating import PlannerConstants

EXACT = 1e-9
#: Random plans of all kinds of random tasks, and what TorchRec's estimators said of them, in ms.
STORED = json.loads((Path(__file__).parent / "golden_torchrec_ratings.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("stored", STORED, ids=range(len(STORED)))
def test_it_is_what_torchrec_said(stored):
    """Tables of 4 to 256 columns in all seven kinds; one host, several, and several in a fast domain; groups of 2D
    parallelism; FP32 and FP16; GPU and CPU.
    """
    task, plan = ShardingTask.from_dict(stored["task"]), ShardingPlan.from_dict(stored["plan"])
    [found] = make_cost("torchrec_rating", **stored["constants"]).evaluate(task, [plan])
    np.testing.assert_allclose(found.per_device, stored["per_device"], rtol=EXACT)
    assert found.total_ms == pytest.approx(stored["rating_ms"], rel=EXACT)


@pytest.mark.torchrec
def test_torchrec_says_today_what_is_stored():
    pytest.importorskip("torchrec", reason="needs TorchRec")
    from torchrec_estimates import estimate

    for stored in STORED:
        task, plan = ShardingTask.from_dict(stored["task"]), ShardingPlan.from_dict(stored["plan"])
        per_device, rating_ms = estimate(task, plan, PlannerConstants(**stored["constants"]))
        np.testing.assert_allclose(per_device, stored["per_device"], rtol=EXACT)
        assert rating_ms == pytest.approx(stored["rating_ms"], rel=EXACT)


@pytest.mark.torchrec
@pytest.mark.parametrize(("devices", "domain"), [(2, 2), (8, 4)])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_is_what_torchrec_says_of_unpooled_tables(devices, domain, precision):
    """Whole, by columns, by rows, replicated; of two widths, one shared by two features, and a pooled one beside."""
    pytest.importorskip("torchrec", reason="needs TorchRec")
    from torchrec_estimates import estimate

    tables = [
        EmbeddingTable("whole", 100, 64, 3.5, pooling="none"), EmbeddingTable("columns", 300, 128, 0.4, pooling="none"),
        EmbeddingTable("rows", 40 * devices, 64, 12.0, pooling="none", num_features=2),
        EmbeddingTable("copies", 50, 64, 7.0, pooling="none"), EmbeddingTable("pooled", 70, 32, 5.0),
    ]  # fmt: skip
    topology = Topology(devices, 2**30, fast_domain_size=domain)
    task = ShardingTask(tuple(tables), topology, 100 * devices, precision)
    shards = [
        Shard.whole(tables[0], 1),
        *(Shard("columns", (0, 300), pair, n % devices) for n, pair in enumerate([(0, 16), (16, 96), (96, 128)])),
        *(Shard("rows", (40 * n, 40 * n + 40), (0, 64), n) for n in range(devices)),
        Shard.whole(tables[3], *range(devices)),
        Shard.whole(tables[4], 0),
    ]
    plan = ShardingPlan.of(task, shards)
    per_device, rating_ms = estimate(task, plan)
    [found] = make_cost("torchrec_rating").evaluate(task, [plan])
    np.testing.assert_allclose(found.per_device, per_device, rtol=EXACT)
    assert found.total_ms == pytest.approx(rating_ms, rel=EXACT)
