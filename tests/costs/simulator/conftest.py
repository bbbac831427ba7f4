"""A made-up machine: samples from a formula with noise, and a simulator trained on them for seconds.

TEST FIXTURE ONLY. Nothing here was measured; the errors of models trained on it say nothing about real hardware.
"""

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost

BATCH = 512
TAG = "made-up"


def made_up_table(number: int, rng: np.random.Generator, *, narrow: bool = False) -> EmbeddingTable:
    """A table with random features; narrow ones lie well inside of the range of the others."""
    rows, pooling = (10 ** rng.uniform(2.5, 4.5), 10.0) if narrow else (10 ** rng.uniform(2, 5), 30.0)
    bins = np.zeros(17)
    bins[:6] = rng.dirichlet(np.linspace(3, 0.5, 6))
    return EmbeddingTable(
        f"t{number}", int(rows), int(rng.choice([4, 8, 16, 32, 64])),
        pooling_factor=float(np.round(10 ** rng.uniform(-0.3, np.log10(pooling)), 3)),
        reuse_histogram=tuple((bins / bins.sum()).tolist()),
    )  # fmt: skip


def formula_ms(tables: list[EmbeddingTable]) -> tuple[float, float]:
    """Forward and backward ms on the made-up machine; fusing many tables saves up to a third."""
    ids = np.array([BATCH * t.pooling_factor for t in tables])
    dims = np.array([t.embedding_dim for t in tables])
    saved = 1 - (1 - 1 / len(tables)) / 3
    forward = 0.05 + saved * float((0.01 + ids * (2e-5 + 1e-6 * dims)).sum())
    return forward, 0.1 + 2.2 * saved * float((0.01 + ids * (3e-5 + 1e-6 * dims)).sum())


def content(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def row_of(tables, rng, **columns) -> dict:
    """What a device that holds tables takes, with noise."""
    forward, backward = np.array(formula_ms(tables)) * np.exp(rng.normal(0, 0.03, 2))
    return {
        "batch_size": BATCH, "precision": "fp32", "optimizer": "exact_sgd",
        "num_embeddings": [t.num_embeddings for t in tables], "embedding_dim": [t.embedding_dim for t in tables],
        "pooling_factor": [t.pooling_factor for t in tables],
        "reuse_histogram": [list(t.reuse_histogram) for t in tables], "table_name": [t.name for t in tables],
        "forward_ms": float(forward), "backward_ms": float(backward), "noise": 0.03, **columns,
    }  # fmt: skip


def compute_rows(rng, role: str, pool: list[EmbeddingTable], count: int, repeats: int = 1) -> list[dict]:
    rows = []
    for n in range(count):
        tables = [pool[i] for i in rng.choice(len(pool), size=rng.integers(1, 9), replace=False)]
        for repeat in range(repeats):
            names = {"sample_id": f"{role}-{n}-{repeat}", "role": role, "content": content(role, n), "repeat": repeat}
            rows.append(row_of(tables, rng, **names))
    return rows


def step_rows(rng, role: str, pool: list[EmbeddingTable], plans: int, repeats: int = 1) -> list[dict]:
    """Rows of plans of three to eight tables on two to four devices; other parts take a share of the samples' time."""
    from shardgym.training.samples import STEP_PARTS

    rows = []
    for n in range(plans):
        devices = int(rng.integers(2, 5))
        tables = [pool[i] for i in rng.choice(len(pool), size=rng.integers(3, 9), replace=False)]
        on = rng.integers(0, devices, len(tables))
        samples = BATCH // devices
        of_plan = {
            "plan": f"{role}/{n}/0", "num_devices": devices, "samples": samples, "pace": 1.0,
            "plan_shards": len(tables), "plan_ids": BATCH * sum(t.pooling_factor for t in tables),
            "plan_columns": sum(t.embedding_dim for t in tables), "role": role,
        }  # fmt: skip
        for repeat, device in itertools.product(range(repeats), sorted(set(on.tolist()))):
            held = [table for table, where in zip(tables, on, strict=True) if where == device]
            row = row_of(held, rng, **of_plan, device=device, repeat=repeat, content=content(role, n, device))
            parts = 0.1 + 1e-4 * samples * len(tables) * np.exp(rng.normal(0, 0.03, len(STEP_PARTS)))
            row |= {f"{part}_ms": ms for part, ms in zip(STEP_PARTS, parts.tolist(), strict=True)}
            rows.append(row | {"sample_id": f"steps/{role}/{n}/{device}/{repeat}"})
    return rows


@pytest.fixture(scope="session")
def write_samples():
    """Write rows by kind, or by name of a file that begins with the kind, into a folder."""
    from shardgym.training.samples import DataInfo, write_rows

    def write(folder: Path, rows: dict[str, list], hardware: str = TAG) -> Path:
        folder.mkdir(exist_ok=True)
        info = DataInfo(hardware, {"shardgym": "test"}, {"of": hardware}, "2026-01-01T00:00:00+00:00")
        for name, of_kind in rows.items():
            write_rows(folder / f"{name}.parquet", "steps" if name.startswith("steps") else "compute", of_kind, info)
        return folder

    return write


@pytest.fixture(scope="session")
def made_up_rows() -> dict[str, list]:
    """Rows of all roles; tables 0-59 are learned from, 60-89 are for testing."""
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    rng = np.random.default_rng(3)
    tables = [made_up_table(n, rng) for n in range(90)]
    compute = [
        *compute_rows(rng, "oracle", tables[:60], 400), *compute_rows(rng, "judge", tables[:60], 300),
        *compute_rows(rng, "test", tables[60:], 60, repeats=2),
    ]  # fmt: skip
    steps = [
        *step_rows(rng, "oracle", tables[:60], 60), *step_rows(rng, "judge", tables[:60], 50),
        *step_rows(rng, "test", tables[60:], 20, repeats=2),
    ]  # fmt: skip
    return {"compute": compute, "steps": steps}


@pytest.fixture(scope="session")
def data_folder(made_up_rows, write_samples, tmp_path_factory) -> Path:
    return write_samples(tmp_path_factory.mktemp("samples"), made_up_rows)


@pytest.fixture(scope="session")
def quick_settings():
    from shardgym.training.fitting import FitSettings

    return FitSettings(epochs=60, least_steps=0, batch=64, members=2, weight_decay=2.0)


@pytest.fixture(scope="session")
def model(data_folder, quick_settings, tmp_path_factory, worker_id) -> Path:
    """A folder of weights for the made-up machine, trained by the first worker that needs it."""
    from shardgym.training.data import load_data
    from shardgym.training.pretrain import pretrain

    shared = tmp_path_factory.getbasetemp()
    folder = (shared if worker_id == "master" else shared.parent) / "model"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            pretrain(load_data(data_folder), folder, quick_settings, seed=5)
    return folder


@pytest.fixture
def oracle(model):
    return make_cost("simulator", weights=model)


@pytest.fixture
def judge(model):
    return make_cost("simulator", weights=model, role="judge")


@pytest.fixture
def task() -> ShardingTask:
    """Twelve tables of the made-up kind on three devices, with as many samples for each of them."""
    rng = np.random.default_rng(17)
    tables = tuple(made_up_table(100 + n, rng, narrow=True) for n in range(12))
    return ShardingTask(tables, Topology(num_devices=3, memory_bytes=2**30), batch_size=BATCH // 3 * 3)


@pytest.fixture
def plans(task) -> list[ShardingPlan]:
    """Ten random plans, and one that leaves two devices empty."""
    rng = np.random.default_rng(23)
    placements = [*rng.integers(0, 3, (10, 12)).tolist(), [1] * 12]
    return [ShardingPlan.table_wise(task, placement) for placement in placements]
