"""The rules of AnyWise: halving, cutting by rows, replicating, and what TorchRec makes of the plans."""

import dataclasses
import itertools

import numpy as np
import pytest
from env_toys import masked_rollout, plans_reached, play, random_task
from sums import even_share_ms

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, StepMemory, Topology, ZipfIds, make_cost
from shardgym.costs.roofline import RooflineCost
from shardgym.envs.any_wise import AnyWiseEnv
from shardgym.envs.features import DEVICE_FEATURES
from shardgym.envs.game import Game, Rules
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import SplitLimits
from shardgym.tables.row_access import access_share

#: Actions behind those of four devices.
HALVE, BY_ROWS, REPLICATE = 4, 5, 6


def on_four(*tables, memory_bytes=2**20, domain=2, **options):
    topology = Topology(num_devices=4, memory_bytes=memory_bytes, fast_domain_size=domain)
    return ShardingTask(tables, topology, batch_size=64, **options)


def popular_first(task):
    """The task with tables whose popular rows are their first ones, where their place matters, but for two."""
    ids = ZipfIds(1.1, row_order="by_frequency")
    tables = [dataclasses.replace(table, ids=ids, reuse_histogram=None) for table in task.tables[2:]]
    return dataclasses.replace(task, tables=(*task.tables[:2], *tables))


def mixed_tasks(**topology):
    """Tasks of one domain, of several, of domains that do not divide the devices, and of one device."""
    rng = np.random.default_rng(8)
    sizes = ((4, 2), (8, 4), (8, 2), (6, 4), (3, 3), (1, 1), (2, 1))
    tasks = [random_task(rng, 7, devices, fast_domain_size=domain, **topology) for devices, domain in sizes]
    return [*tasks, *map(popular_first, tasks[:3])]


@pytest.mark.parametrize(
    ("actions", "kind", "shards"),
    [
        (
            [BY_ROWS, BY_ROWS, 0],
            "row_wise",
            [((0, 3), (0, 16), (0,)), ((3, 6), (0, 16), (1,)), ((6, 9), (0, 16), (2,)), ((9, 10), (0, 16), (3,))],
        ),
        ([BY_ROWS, 2], "table_row_wise", [((0, 5), (0, 16), (2,)), ((5, 9), (0, 16), (3,))]),
        (
            [BY_ROWS, HALVE, 0, 2],
            "grid_shard",
            [((0, 5), (0, 8), (0,)), ((0, 5), (8, 16), (2,)), ((5, 9), (0, 8), (1,)), ((5, 9), (8, 16), (3,))],
        ),
    ],
)
def test_rows_are_cut_as_torchrec_cuts_them(actions, kind, shards):
    # Memory of three, three, three and one rows of 64 bytes, or enough for anything.
    rows, memory_bytes = (10, (192, 192, 192, 64)) if kind == "row_wise" else (9, 2**20)
    task = on_four(EmbeddingTable("t", rows, 16), memory_bytes=memory_bytes)
    *_, (_, reward, ended, _, info) = play(AnyWiseEnv(tasks=[task]), actions)
    assert (ended, info["outcome"]) == (True, "complete")
    assert info["plan"] == ShardingPlan.of(task, [Shard("t", *shard) for shard in shards])
    assert info["plan"].kind_of("t", task) == kind
    assert reward == -RooflineCost().evaluate(task, [info["plan"]])[0].total_ms


@pytest.mark.parametrize("domain", [4, 2])
def test_memory_of_steps_is_that_of_plans(domain):
    """Pieces of rows put out sums for all samples, and replicas have dense gradients, but send no ids."""
    rng, kinds = np.random.default_rng(3), set()
    tables = [EmbeddingTable(f"t{n}", 40 + 9 * n, 16, 4.0 + n) for n in range(3)]
    tables.append(EmbeddingTable("hot", 64, 16, 9.0, ZipfIds(1.2, row_order="by_frequency")))
    task = on_four(*tables, memory_bytes=90_000, domain=domain, step_memory=StepMemory(reserved_bytes=(0, 999, 0, 0)))
    env = AnyWiseEnv(tasks=[task], max_splits=2)
    for _ in range(150):
        observation, info = env.reset()
        while "outcome" not in info:
            action = rng.choice(np.flatnonzero(observation["action_mask"]))
            observation, _, _, _, info = env.step(action)
        if info["outcome"] == "complete":
            plan = info["plan"]
            plan.validate(task)
            used = [sum(shard.bytes(task) for shard in plan.on(device)) for device in range(4)]
            free = observation["devices"].reshape(4, -1)[:, DEVICE_FEATURES.index("free_share")]
            assert free == pytest.approx(1 - np.array(used) / task.capacity_bytes, abs=1e-5)
            kinds |= {plan.kind_of(table.name, task) for table in tables}
    assert kinds >= {"table_wise", "column_wise" if domain == 4 else "table_row_wise", "row_wise", "data_parallel"}


def ways(table, *, halved):
    """Every way to hold a table of four units of columns on two domains of two devices that the rules allow."""
    columns = (0, table.embedding_dim)
    middle = table.embedding_dim // 2
    rows = (0, table.num_embeddings)

    def by_rows(columns, devices):
        block = -(-table.num_embeddings // len(devices))
        edges = [min(n * block, table.num_embeddings) for n in range(len(devices) + 1)]
        return [Shard(table.name, edge, columns, d) for edge, d in zip(itertools.pairwise(edges), devices, strict=True)]

    yield from ([Shard(table.name, rows, columns, device)] for device in range(4))
    yield [Shard(table.name, rows, columns, (0, 1, 2, 3))]
    domains = (0, 1), (2, 3)
    if table.pooling == "sum":
        yield from (by_rows(columns, domain) for domain in domains)
        if 3 * -(-table.num_embeddings // 4) < table.num_embeddings:
            yield by_rows(columns, (0, 1, 2, 3))
    if halved:
        halves = (0, middle), (middle, columns[1])
        for pair in itertools.product(range(4), repeat=2):
            yield [Shard(table.name, rows, half, device) for half, device in zip(halves, pair, strict=True)]
        if table.pooling == "sum":
            for pair in (domains, domains[::-1]):
                yield [shard for half, domain in zip(halves, pair, strict=True) for shard in by_rows(half, domain)]


@pytest.mark.parametrize(("memory_units", "some"), [(1000, slice(0, 3, 2)), (9, slice(3))], ids=["roomy", "tight"])
def test_what_masked_play_can_reach_is_every_feasible_plan_that_the_rules_allow(memory_units, some):
    tables = [EmbeddingTable("a", 8, 8), EmbeddingTable("b", 5, 4, 2.0), EmbeddingTable("c", 3, 4, pooling="mean")]
    tables = tables[some]
    # A row of four columns takes 16 bytes.
    task = on_four(*tables, memory_bytes=(16 * memory_units, *[16 * memory_units + 32] * 3))
    env = AnyWiseEnv(tasks=[task], max_splits=1)
    env.reset()
    reached = plans_reached(env)
    held = itertools.product(*(ways(table, halved=table.name == "a") for table in tables))
    plans = [ShardingPlan.of(task, itertools.chain(*shards)) for shards in held]
    costs = RooflineCost().evaluate(task, plans)
    feasible = {plan.digest for plan, cost in zip(plans, costs, strict=True) if cost.feasible}
    assert reached == feasible
    assert (len(feasible) < len({plan.digest for plan in plans})) == (memory_units == 9)
    assert len(feasible) > 100


def test_a_cut_by_rows_always_leaves_a_place():
    """Devices are almost full, so that cuts by rows often fit on one domain only, or on none."""
    env, cuts = AnyWiseEnv(tasks=mixed_tasks(memory_bytes=500_000), max_splits=2), 0
    by_rows = env.action_space.n - 2
    rng = np.random.default_rng(0)
    for seed in range(15):
        env.reset(seed=seed)
        ended = False
        while not ended:
            masks = env.action_masks()
            action = by_rows if masks[by_rows] else rng.choice(np.flatnonzero(masks))
            _, _, ended, *_ = env.step(action)
            if action == by_rows:
                cuts += 1
                assert not ended
    assert cuts > 40


@pytest.mark.parametrize("cost", ["roofline", "gpu", "torchrec_rating"])
def test_every_plan_is_priced_as_the_cost_does_and_so_are_tables_that_are_placed(cost):
    tasks = mixed_tasks()
    if cost == "gpu":
        tasks = [dataclasses.replace(t, topology=dataclasses.replace(t.topology, device="h100")) for t in tasks]
    model, kinds, parts = make_cost(cost), set(), 0
    env = AnyWiseEnv(tasks=tasks, cost=model, reward="dense", observation="timed", order="task", max_splits=4)
    earned = 0.0
    for _, reward, ended, _, info in masked_rollout(env, seed=3, steps=700 if cost == "roofline" else 250):
        earned += reward
        task = tasks[info["task_index"]]
        if ended:
            plan = info["plan"]
            plan.validate(task)
            assert info["cost"] == model.evaluate(task, [plan])[0]
            assert earned == pytest.approx(-info["cost"].total_ms, rel=1e-12)
            earned = 0.0
            kinds |= {plan.kind_of(table.name, task) for table in task.tables}
            assert ShardingPlan.from_json(plan.to_json()) == plan
        elif reward and info["width"] == task.table(info["table"]).embedding_dim:
            # All shards of the tables before this one are placed.
            count = [table.name for table in task.tables].index(info["table"])
            part = dataclasses.replace(task, tables=task.tables[:count])
            game = env._game
            placed = slice(info["placed"])
            state = (
                array[0, placed] for array in (game.placements.shards, game.placements.starts, game.placements.devices)
            )
            held = itertools.chain.from_iterable(shard.in_plan() for shard in game.catalog.placed(*state))
            [alone] = model.evaluate(part, [ShardingPlan.of(part, held)])
            assert earned == pytest.approx(-alone.total_ms, rel=1e-9)
            parts += 1
    assert parts > 15
    assert cost != "roofline" or kinds == {
        "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel"
    }  # fmt: skip


@pytest.mark.torchrec
def test_torchrec_runs_every_plan():
    pytest.importorskip("torchrec", reason="needs TorchRec")
    from shardgym.torchrec.table_cuts import Ranks, as_run, check_one_block_size, cut_of

    tasks, kinds = mixed_tasks(), set()
    env = AnyWiseEnv(tasks=tasks, cost=make_cost("roofline"), max_splits=4)
    for _, _, ended, _, info in masked_rollout(env, seed=5, steps=600):
        if not ended:
            continue
        task, plan = tasks[info["task_index"]], info["plan"]
        ranks = Ranks(task.num_devices, task.topology.devices_per_host)
        cuts = [cut_of(as_run(plan, task), task, table, ranks) for table in task.tables]
        check_one_block_size(cuts)
        kinds |= {cut.kind for cut in cuts}
    assert len(kinds) == 7


def test_each_part_has_its_own_share_of_the_ids():
    ids = ZipfIds(1.1, row_order="by_frequency")
    task = on_four(EmbeddingTable("t", 1000, 16, 5.0, ids=ids), EmbeddingTable("u", 9, 4), domain=4)
    cost = RooflineCost()
    env = AnyWiseEnv(tasks=[task], cost=cost, observation="timed")
    cut, placed = (step[0] for step in play(env, [BY_ROWS, 0]))
    pieces = [Shard("t", (first, first + 250), (0, 16), d) for d, first in enumerate(range(0, 1000, 250))]
    alone = dataclasses.replace(task, tables=task.tables[:1])
    [by_rows] = cost.evaluate(alone, [ShardingPlan.of(alone, pieces)])
    assert not cut["times"][::2].any()
    np.testing.assert_allclose(cut["times"][1::2], by_rows.compute_ms / even_share_ms(cost, task), rtol=1e-6)
    lookups = placed["devices"].reshape(4, 7)[:, 5]
    assert lookups[0] > 1.5 * lookups[3]
    of_t = 80 / 84
    np.testing.assert_allclose(lookups / of_t, [access_share(task.tables[0], *p.rows) for p in pieces], rtol=1e-5)


def test_features_are_those_of_what_a_holder_gets():
    task = on_four(EmbeddingTable("t", 10, 16, 8.0), EmbeddingTable("u", 10, 16, 8.0), domain=4, memory_bytes=1000)
    env = AnyWiseEnv(tasks=[task], observation="full", order="task")
    steps = play(env, [BY_ROWS, 0, REPLICATE])
    cut, placed, ended = (step[0] for step in steps)
    assert [step[4]["holders"] for step in steps] == [4, 1, 0]
    assert [step[4]["rows"] for step in steps] == [3, 10, 0]
    np.testing.assert_allclose(cut["kind"], [0.3, 1.0], rtol=1e-6)
    assert placed["kind"].tolist() == [1.0, 0.25]
    assert ended["kind"].tolist() == [0.0, 0.0]
    rows, columns, pooling, of_largest, of_bytes, of_columns, of_lookups = cut["table"][:7]
    found = [rows * 40, columns * 16, np.expm1(pooling * np.log1p(1e6)), of_largest, of_bytes, of_columns, of_lookups]
    np.testing.assert_allclose(found, [np.log2(3), 4, 2.4, 0.192, 0.15, 0.15, 0.15], rtol=1e-5)
    devices = placed["devices"].reshape(4, 7)
    np.testing.assert_allclose(devices[:, 3], [0.15, 0.15, 0.15, 0.05], rtol=1e-6)
    np.testing.assert_allclose(devices[:, 1], [0.808, 0.808, 0.808, 0.936], rtol=1e-6)
    np.testing.assert_allclose(devices[:, 5], devices[:, 3], rtol=1e-6)
    assert devices[:, 6].tolist() == [0.5] * 4
    # A replica takes its bytes everywhere, and a share of the samples.
    after = ended["devices"].reshape(4, 7) - devices
    np.testing.assert_allclose(after[:, 3:6], [[0.5, 0.125, 0.125]] * 4, rtol=1e-5)
    assert ended["membership"].reshape(-1, 4)[:2].tolist() == [[1] * 4] * 2
    np.testing.assert_allclose(ended["row_shares"][:2], [0.3, 1.0], rtol=1e-6)
    assert ended["waiting"].sum() == 0


@pytest.mark.parametrize(
    ("task", "actions"),
    [
        (on_four(EmbeddingTable("t", 5, 16), domain=4), [BY_ROWS]),
        (on_four(EmbeddingTable("t", 10, 16), domain=4), [BY_ROWS, BY_ROWS]),
        (on_four(EmbeddingTable("t", 10, 16)), [HALVE, HALVE, BY_ROWS]),
        (on_four(EmbeddingTable("t", 10, 16)), [HALVE, BY_ROWS, HALVE]),
        (on_four(EmbeddingTable("t", 10, 16)), [HALVE, BY_ROWS, 2, HALVE]),
        (on_four(EmbeddingTable("t", 10, 16)), [HALVE, REPLICATE]),
        (on_four(EmbeddingTable("t", 10, 16), memory_bytes=(640, 640, 10, 640)), [REPLICATE]),
        (on_four(EmbeddingTable("t", 10, 16), memory_bytes=(640, 640, 10, 10)), [BY_ROWS, 2]),
        (on_four(EmbeddingTable("t", 10, 16), memory_bytes=(640, 100, 100, 10)), [BY_ROWS]),
        (on_four(EmbeddingTable("t", 10, 16), memory_bytes=(192, 192, 192, 63), domain=4), [BY_ROWS]),
        (on_four(EmbeddingTable("t", 10, 16)), [7]),
    ],
)
def test_the_last_of_these_actions_is_invalid(task, actions):
    """Devices without rows, other kinds for other columns, no room."""
    env = AnyWiseEnv(tasks=[task])
    *_, (_, reward, ended, _, info) = play(env, actions)
    assert (reward, ended, info["outcome"]) == (-1000.0, True, "invalid_action")


def test_a_cost_without_replicas_has_none(simulator):
    task = random_task(np.random.default_rng(0), 3, 2)
    env = AnyWiseEnv(tasks=[task], cost=simulator)
    env.reset()
    assert env.action_masks().tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("task", mixed_tasks()[:2])
def test_copies_of_an_episode_go_on_as_it_does_wherever_they_were_before(task):
    limits = SplitLimits(4, every_kind=True)
    layout = Layout(task.num_devices, 4, timed=True, every_kind=True)
    game = Game(Rules("task", "relative", -1e9, limits, plans=False), RooflineCost(), layout, 4)
    every = np.arange(4)
    rng = np.random.default_rng(0)
    for _ in range(40):
        if game.ended[0]:
            game.start(every, [(0, task), *[(1, mixed_tasks()[5])] * 3])
        # Others take another way first, as far as there is one.
        for row in every[1:][~game.ended[1:]].tolist():
            game.step(np.array([row]), np.full(4, rng.choice(np.flatnonzero(game.masks()[row]))))
        game.copy(0, every[1:])
        rewards = game.step(every, np.full(4, rng.choice(np.flatnonzero(game.masks()[0])))).rewards
        assert len(np.unique(rewards)) == 1
        seen = [*game.observe().values(), *game.infos().values(), game.earned, game.ended, game.masks()]
        assert all((array[1:] == array[:1]).all() for array in map(np.asarray, seen))
