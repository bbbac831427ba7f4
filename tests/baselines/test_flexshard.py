"""Tiers: cut points against all others, memory, balance, and what the replayed judge says of plans."""

import dataclasses

import numpy as np
import pytest

from baselines.flexshard import FlexShard, best_tiers, choices_of
from shardgym import EmbeddingTable, InputError, NoFeasiblePlanError, ShardingTask, Topology, make_cost
from shardgym.plans.row_tiers import Tiers, tier_plan
from shardgym.tables.table import RangeIds, UniformIds, ZipfIds

EXPECTED = make_cost("replay", ids="expected")
HOT = ZipfIds(s=1.1, q=1.0, row_order="by_frequency")


def sequence_task(*laws, rows=40_000, devices=16, domain=4, room=1.5, pooling="none", **options):
    """Devices of an A100 with as much more room as told than tables cut by rows take."""
    tables = tuple(
        EmbeddingTable(f"t{n}", rows * (1 + n % 2), 64, 200.0, law, pooling=pooling) for n, law in enumerate(laws)
    )
    total = sum(table.num_embeddings * 64 * 4 for table in tables)
    topology = dataclasses.replace(
        Topology.preset("dgx-a100", devices, int(room * total / devices)), fast_domain_size=domain
    )
    return ShardingTask(tables, topology, 64 * devices, **options)


@pytest.mark.parametrize(("share", "room"), [(0.0, 1.05), (0.5, 1.3), (1.0, 2.0)])
def test_no_cut_points_take_less_time_in_the_same_memory(share, room):
    """Exchanges are sums over tables, so the price of memory leaves no better choice of as few bytes."""
    task = sequence_task(HOT, ZipfIds(s=0.8, row_order="by_frequency"), rows=500)
    choices = [choices_of(task, table) for table in task.tables]
    choices = [type(c)(*(values[::29] for values in c)) for c in choices]
    budget = room * sum(float(c.num_bytes.min()) for c in choices)
    times = [c.others_ms + share * c.inside_ms + (1 - share) * c.between_ms for c in choices]
    found = best_tiers(choices, budget, share)
    at = [c.tiers.tolist().index(list(cut)) for c, cut in zip(choices, found, strict=True)]
    took, used = (
        sum(float(v[n]) for v, n in zip(values, at, strict=True)) for values in (times, [c.num_bytes for c in choices])
    )
    assert used <= budget
    all_times = times[0][:, None] + times[1]
    all_bytes = choices[0].num_bytes[:, None] + choices[1].num_bytes
    assert took <= all_times[all_bytes <= used].min() + 1e-5


def test_every_cut_point_is_looked_at():
    task = sequence_task(HOT, rows=50)
    tiers = {tuple(cut) for cut in choices_of(task, task.tables[0]).tiers.tolist()}
    assert {(n, m) for m in range(8) for n in range(m + 1)} | {(0, 50), (50, 50)} <= tiers


def test_expected_bytes_between_nodes_are_those_that_are_replayed():
    task = sequence_task(HOT, HOT, HOT)
    tiers = [Tiers(20, 700), Tiers(0, 300), Tiers(50, 50)]
    choices = [choices_of(task, table) for table in task.tables]
    between_ms = 0.0
    for table, c, cut in zip(task.tables, choices, tiers, strict=True):
        # The nearest pairs of cut points that are looked at.
        at = np.abs(np.log1p(c.tiers) - np.log1p(np.array(cut))).sum(axis=1).argmin()
        tiers[int(table.name[1:])] = Tiers(*c.tiers[at].tolist())
        between_ms += c.between_ms[at]
    traffic = make_cost("replay").traffic(task, tier_plan(task, tiers))
    lengths = 16 * 12 * 64 * 3 * 8  # of bags, which cut points do not change
    expected = between_ms * 1e-3 * task.topology.inter_bandwidth * 16 + lengths
    assert traffic.global_all_to_all_bytes == pytest.approx(expected, rel=0.02)


def gain(law, **options):
    """What rows in tiers bring over rows spread over all devices, by the judge."""
    task = sequence_task(law, law, law, **options)
    plan = FlexShard().solve(task, EXPECTED)
    by_rows = tier_plan(task, [Tiers(0, 0)] * 3)
    took, without = (answer.total_ms for answer in make_cost("replay").evaluate(task, [plan, by_rows]))
    return without / took


def test_the_judge_likes_tiers_more_where_rows_are_skewed():
    some, much = (ZipfIds(s=s, row_order="by_frequency") for s in (0.7, 1.2))
    assert gain(UniformIds()) == 1.0
    assert 1.0 <= gain(some) < gain(much)
    # Without repeats a hot row travels once for each device.
    assert 1.0 <= gain(much, dedup_ids=True) < gain(much)


def test_oracles_that_price_no_tiers_are_not_asked():
    task = sequence_task(HOT, HOT)
    plan = FlexShard().solve(task, make_cost("roofline"))
    assert plan.kind_of("t0", task) == "tiers"
    by_oracle = FlexShard().solve(task, EXPECTED)
    took, best = (answer.total_ms for answer in EXPECTED.evaluate(task, [plan, by_oracle]))
    assert best <= took < 1.2 * best


@pytest.mark.parametrize(
    "law",
    [
        ZipfIds(s=1.0, row_order="scattered"),
        ZipfIds(s=1.0, row_order="blocks", block_rows=100),
        RangeIds(shares=(0.2, 0.5, 0.3)),
    ],
    ids=lambda law: law.kind,
)
def test_scattered_rows_have_to_be_remapped(law):
    task = sequence_task(HOT, law)
    with pytest.raises(InputError, match=r"^table 't1': its popular rows do not come first, .*: remap its rows"):
        FlexShard().solve(task, EXPECTED)


def test_unlike_memory_gets_rows_in_proportion():
    task = sequence_task(HOT, HOT)
    total = sum(task.table_bytes(table) for table in task.tables)
    memory = tuple(total * (1 + n % 3) // 31 for n in range(16))
    task = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=memory))
    with pytest.raises(NoFeasiblePlanError):
        FlexShard().solve(task, EXPECTED)
    roomy = dataclasses.replace(
        task, topology=dataclasses.replace(task.topology, memory_bytes=tuple(int(1.01 * size) for size in memory))
    )
    plan = FlexShard().solve(roomy, EXPECTED)
    plan.validate(roomy)
    assert not plan.has_replicas


def test_tables_that_do_not_fit_end_with_a_reason():
    task = sequence_task(HOT, HOT, rows=40_001, room=1.0)
    with pytest.raises(NoFeasiblePlanError, match=r"^cut by rows over all devices: device \d+ holds \d+ bytes"):
        FlexShard().solve(task, EXPECTED)
