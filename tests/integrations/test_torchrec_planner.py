"""The planner in place of TorchRec's: alone, and on all ranks of a group."""

import inspect
import json
import os
import re
import time

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec_toys import MARKS, Reversed, Toy, collection, config, planner, remapped, run_ranks, topology

from shardgym import InputError, NoFeasiblePlanError, ShardGymError, make_solver
from shardgym.costs.calibrated import Calibration
from shardgym.tasks.topology import Topology
from shardgym.torchrec import PlannerSettings, Reserve, ShardGymPlanner, from_torchrec, topology_from_torchrec

pytestmark = MARKS


class Broken:
    def solve(self, task, cost, seed=0):
        raise ZeroDivisionError("by zero")


def test_a_plan_is_made_by_the_solver_that_was_named():
    ours = planner(Reversed(), constraints={"users.id": ParameterConstraints(pooling_factors=[5.0])})
    plan = ours.plan(Toy(), [EmbeddingBagCollectionSharder()])
    assert [of.ranks for module in plan.plan.values() for of in module.values()] == [[1], [0], [1]]
    assert str(plan.plan["users"]["id"].sharding_spec.shards[0].placement) == "rank:1/cpu"
    task = ours.last.task
    assert task.batch_size == 32
    assert task.table("users.id").pooling_factor == 5.0
    assert from_torchrec(plan, task) == ours.last.plan
    assert (ours.last.cost.cost, ours.last.cost.feasible) == ("roofline", True)


def test_torchrecs_topology_is_taken_as_it_is():
    theirs = TorchRecTopology(
        world_size=16, compute_device="cuda", hbm_cap=2**20, local_world_size=8,
        hbm_mem_bw=2e9, intra_host_bw=3e8, inter_host_bw=2.5e7,
    )  # fmt: skip
    ours = topology_from_torchrec(theirs)
    assert (ours.num_devices, ours.fast_domain_size, ours.device) == (16, 8, "a100")
    assert ours.memory_bytes == (2**20,) * 16
    assert (ours.intra_bandwidth, ours.inter_bandwidth) == (3e11, 2.5e10)
    on_cpus = topology_from_torchrec(TorchRecTopology(2, "cpu", ddr_cap=1000))
    assert (on_cpus.device, on_cpus.host_memory_bytes) == ("cpu-core", 0)
    hosts = topology_from_torchrec(
        TorchRecTopology(8, "cuda", local_world_size=2, ddr_cap=2**30, hbm_to_ddr_mem_bw=1e7)
    )
    assert (hosts.fast_domain_size, hosts.host_size) == (2, None)
    assert (hosts.host_memory_bytes, hosts.host_bandwidth) == (2 * 2**30, 1e10)
    if "pod_size" in inspect.signature(TorchRecTopology).parameters:  # from 1.6
        pods = topology_from_torchrec(TorchRecTopology(8, "cuda", local_world_size=2, pod_size=2))
        assert (pods.fast_domain_size, pods.host_size) == (4, 2)
    plan = ShardGymPlanner(theirs, 16, settings=PlannerSettings("size_greedy")).plan(Toy())
    shards = [s for tables in plan.plan.values() for t in tables.values() for s in t.sharding_spec.shards]
    assert {str(s.placement) for s in shards} <= {f"rank:{r}/cuda:{r % 8}" for r in range(16)}
    with pytest.raises(InputError, match="'mtia'"):
        topology_from_torchrec(TorchRecTopology(2, "mtia"))


@pytest.mark.parametrize(
    ("given", "device", "cost"),
    [
        (TorchRecTopology(2, "cuda", hbm_cap=2**20), "v100", "gpu"),  # TorchRec's own default bandwidth
        (TorchRecTopology(2, "cpu", ddr_cap=2**20), "cpu-core", "roofline"),
        (TorchRecTopology(2, "cpu", ddr_cap=2**20, intra_host_bw=1e6), "cpu-core", "roofline"),
        (Topology.preset("dgx-h100", 2), "h100", "gpu"),
        (Topology.preset("l40s", 2), "l40s", "gpu"),
        (topology(), "cpu-core", "roofline"),
    ],
)
def test_a_known_card_is_planned_by_the_cost_that_models_it(given, device, cost, caplog):
    caplog.set_level("INFO", "shardgym.torchrec")
    ShardGymPlanner(given, 16, settings=PlannerSettings("lpt")).plan(Toy())
    first, *remarks, gain = caplog.messages
    assert first == f"LPT places 3 tables on 2 devices by cost '{cost}' of '{device}'"
    gained = rf"the plan takes ([\d.]+) ms by '{cost}', that of 'lpt' under the same constraints \1\. Both cost"
    assert re.match(gained, gain)
    # Nobody said that the devices are of this kind.
    is_default = isinstance(given, TorchRecTopology) and given.intra_host_bw == TorchRecTopology(2, "cpu").intra_host_bw
    said = {"v100": "the plan is for GPUs like 'v100'", "cpu-core": "the plan is for CPUs with links of 644 GB/s"}
    said["l40s"] = "note on the cost: gpu was validated against published kernels of v100"
    assert [remark.partition(",")[0] for remark in remarks] == [said.get(device)] * (is_default or device == "l40s")
    caplog.clear()
    ShardGymPlanner(given, 16, settings=PlannerSettings("lpt", "torchrec_rating")).plan(Toy())
    assert caplog.messages[:-1] == [f"LPT places 3 tables on 2 devices by cost 'torchrec_rating' of '{device}'"]


def test_devices_full_of_tables_are_named_unless_there_is_a_reserve(caplog):
    tables = 4 * (100 * 16 + 20 * 8 + 50 * 24)
    full, half = (TorchRecTopology(1, "cpu", ddr_cap=memory) for memory in (tables + 1000, 10 * tables))
    caplog.clear()  # TorchRec's own
    ShardGymPlanner(full, 16, settings=PlannerSettings("lpt")).plan(Toy())
    (remark,) = caplog.messages
    share = 100 * tables / (tables + 1000)
    assert remark.startswith(f"tables take {share:.1f} % of the memory of device 0, and nothing")
    caplog.clear()
    ShardGymPlanner(half, 16, settings=PlannerSettings("lpt", reserve=Reserve(0.0, 0.0, 0.0))).plan(Toy())
    ShardGymPlanner(half, 16, settings=PlannerSettings("lpt")).plan(Toy())
    assert caplog.messages == []


def test_modules_that_would_silently_stay_whole_are_refused(caplog):
    model = nn.Module()
    model.bags = collection(config("a", 50, 8))
    rows = EmbeddingConfig(num_embeddings=50, embedding_dim=8, name="s", feature_names=["s"])
    model.sequences = EmbeddingCollection(tables=[rows], device="meta")
    assert list(planner().plan(model).plan) == ["bags", "sequences"]
    model.wrapped = remapped()
    with pytest.raises(InputError, match=r"'wrapped' \(ManagedCollisionEmbeddingBagCollection\) is a module"):
        planner().plan(model)
    del model.wrapped
    caplog.clear()
    assert list(planner().plan(model, [EmbeddingBagCollectionSharder()]).plan) == ["bags"]
    assert caplog.messages == [
        "'sequences' (EmbeddingCollection: tables s; 1600 bytes) is not planned: it stays whole on every rank"
    ]
    caplog.clear()
    constraints = {"a": ParameterConstraints(), "s": ParameterConstraints()}
    pinned = ShardGymPlanner(topology(), 16, constraints, PlannerSettings("lpt", pins={"sequences.s": 1}))
    assert list(pinned.plan(model, [EmbeddingBagCollectionSharder()]).plan) == ["bags"]
    missing = "not followed: the table is not planned without EmbeddingCollectionSharder() among the sharders"
    assert caplog.messages[1:] == [f"constraints of 's' is {missing}", f"pins of 'sequences.s' is {missing}"]
    with pytest.raises(InputError, match=r"unknown table in constraints 'z': known: a, bags\.a"):
        planner(constraints={"z": ParameterConstraints()}).plan(model, [EmbeddingBagCollectionSharder()])
    strict = ShardGymPlanner(topology(), 16, None, PlannerSettings("lpt", strict=True))
    with pytest.raises(InputError, match=r"strict: 'sequences' .* is not planned"):
        strict.plan(model, [EmbeddingBagCollectionSharder()])
    with pytest.raises(InputError, match=r"expected EmbeddingBagCollectionSharder\(\) or EmbeddingCollectionSharder"):
        planner().plan(model, [])


def test_wrong_arguments_are_refused_when_the_planner_is_made():
    with pytest.raises(InputError, match="unknown solver"):
        planner("nonsense")
    for wrong, message in (({"seed": -1}, "an integer >= 0, got -1"), ({"time_limit_s": 0}, "seconds above 0, got 0")):
        with pytest.raises(InputError, match=f"{next(iter(wrong))}: expected .*{message}"):
            ShardGymPlanner(topology(), 16, None, PlannerSettings(**wrong))
    with pytest.raises(InputError, match="batch_size"):
        ShardGymPlanner(topology(), 0)
    with pytest.raises(InputError, match=r"reserve and carried_bytes, .* take all 1048576 bytes of device 0"):
        ShardGymPlanner(topology(), 16, None, PlannerSettings("lpt", carried_bytes=2**20)).plan(Toy())


@pytest.mark.parametrize(
    ("make_planner", "model", "kind", "message"),
    [
        (lambda: planner(Broken()), Toy(), ShardGymError, "planning failed on the first rank: ZeroDivisionError: by z"),
        (planner, nn.Linear(2, 2), InputError, "Linear has no EmbeddingBagCollection"),
        (planner, collection(config("a", 2**20, 8)), NoFeasiblePlanError, "a"),
        (lambda: planner(devices=3), Toy(), InputError, "expected 3 ranks, as the topology has, got 2"),
    ],
)
def test_an_error_reaches_every_rank(make_planner, model, kind, message):
    first, second = run_ranks(2, lambda rank: make_planner().collective_plan(model))
    assert type(first) is type(second) is kind
    assert message in str(first)
    assert str(first) == str(second)


class Slow:
    """Takes its time, or ends its process."""

    def __init__(self, ends):
        self.ends = ends

    def solve(self, task, cost, seed=0):
        time.sleep(0.1 if self.ends else 2.6)
        if self.ends:
            os._exit(1)
        return make_solver("random").solve(task, cost, seed)


def test_all_ranks_get_the_plan_of_the_first_which_may_take_longer_than_a_collective(monkeypatch):
    """The group gives up after two seconds, and planning takes more."""
    monkeypatch.setattr("shardgym.torchrec.ranks._SIGN_OF_LIFE_S", 0.1)
    first, other = (planner("random", seed=seed).plan(Toy()).plan for seed in range(2))
    found = run_ranks(2, lambda rank: planner(Slow(ends=False), seed=rank).collective_plan(Toy()).plan, 2.0)
    assert found == [first, first] != [other, other]
    with pytest.raises(InputError, match="needs a process group"):
        planner().collective_plan(Toy())


def test_where_the_first_rank_ends_the_others_say_so():
    gone, waiting = run_ranks(2, lambda rank: planner(Slow(ends=True)).collective_plan(Toy()), 2.0)
    assert str(gone) == "the rank died"
    assert type(waiting) is ShardGymError
    assert "the first rank, which plans, no longer answers: see its log" in str(waiting)


def test_a_planner_counts_at_the_level_of_a_cluster(tmp_path):
    path = tmp_path / "result.json"
    levels = Calibration("gpu", "h100", "cuda-x", compute=2.0, exchange=2.0, fixed_ms=7.0)
    path.write_text(json.dumps({"calibration": levels.to_dict()}))
    gpus = Topology.preset("dgx-h100", 2)
    found = []
    for calibration in (None, path):
        ours = ShardGymPlanner(gpus, 16, settings=PlannerSettings("lpt", "gpu", calibration))
        plan = ours.plan(Toy())
        found.append(ours.last.cost)
        assert ours.plan_task(ours.last.task) == ours.last.plan
        assert from_torchrec(plan, ours.last.task) == ours.last.plan
    usual, calibrated = found
    assert (usual.cost, calibrated.cost) == ("gpu", "calibrated")
    assert calibrated.total_ms == pytest.approx(2 * usual.total_ms + 7)
    with pytest.raises(InputError, match="calibration: made for cost 'gpu', got cost 'roofline'"):
        ShardGymPlanner(topology(), 16, settings=PlannerSettings("lpt", calibration=path)).plan(Toy())
