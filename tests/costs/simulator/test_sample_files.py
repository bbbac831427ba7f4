"""Files of samples: written and read whole, and refused with file and field when they are not what they should be."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import shardgym
from shardgym import InputError, MissingDependencyError

pa = pytest.importorskip("pyarrow", reason="needs the extra 'data'")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'data'")

from shardgym.costs.simulator.sample_files import (  # noqa: E402
    DataInfo,
    no_compute,
    no_steps,
    read_compute,
    read_file,
    read_info,
    read_steps,
    write_rows,
)
from shardgym.costs.simulator.samples import STEP_PARTS, joined, with_role  # noqa: E402

MODELS = Path(shardgym.__file__).parent / "costs" / "simulator" / "models"


@pytest.fixture
def file(made_up_rows, tmp_path):
    path = tmp_path / "compute-a.parquet"
    write_rows(path, made_up_rows["compute"][:5], info("compute"))
    return path


def info(kind, hardware="made-up"):
    return DataInfo(kind, hardware, {"torch": "2"}, {"seed": 1}, "2026-01-01T00:00:00+00:00")


def rewritten(path, table):
    """The same file with other columns and the same metadata."""
    metadata = pq.read_schema(path).metadata
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_compute_rows_come_back_as_they_were_written(made_up_rows, tmp_path):
    rows = made_up_rows["compute"][:7]
    write_rows(tmp_path / "compute-1.parquet", rows[:3], info("compute"))
    write_rows(tmp_path / "compute-2.parquet", rows[3:], info("compute"))
    samples = read_compute(tmp_path)
    assert samples.labels.sample_id.tolist() == [row.sample_id for row in rows]
    assert samples.counts.tolist() == [len(row.num_embeddings) for row in rows]
    assert samples.shards.rows.tolist() == [n for row in rows for n in row.num_embeddings]
    assert samples.table.tolist() == [n for row in rows for n in row.table_name]
    np.testing.assert_allclose(samples.shards.reuse, [h for row in rows for h in row.reuse_histogram], rtol=1e-6)
    np.testing.assert_allclose(samples.ms, [(row.forward_ms, row.backward_ms) for row in rows], rtol=1e-12)
    assert samples.labels.collection.tolist() == ["compute-1.parquet"] * 3 + ["compute-2.parquet"] * 4
    part = samples.take(np.array([4, 1]))
    assert part.shards.columns.tolist() == [n for i in (4, 1) for n in rows[i].embedding_dim]


def test_rows_of_steps_come_back_as_they_were_written(made_up_rows, tmp_path):
    rows = made_up_rows["steps"][:9]
    write_rows(tmp_path / "steps-1.parquet", rows, info("steps"))
    samples = read_steps(tmp_path)
    assert len(samples) == 9
    assert samples.labels.sample_id.tolist() == [row.sample_id for row in rows]
    assert samples.compute.counts.tolist() == [len(row.num_embeddings) for row in rows]
    assert samples.compute.shards.columns.tolist() == [n for row in rows for n in row.embedding_dim]
    assert samples.compute.ms.tolist() == [[row.forward_ms, row.backward_ms] for row in rows]
    for name in ("plan", "device", "num_devices", "samples", "plan_shards", "plan_ids", "plan_columns"):
        assert getattr(samples, name).tolist() == [getattr(row, name) for row in rows]
    assert samples.parts_ms.tolist() == [[getattr(row, f"{part}_ms") for part in STEP_PARTS] for row in rows]


def test_devices_in_steps_are_chosen_and_joined_as_wholes(made_up_rows, tmp_path):
    rows = made_up_rows["steps"]
    for name, part in (("a", rows[:30]), ("b", rows[30:])):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / "steps.parquet", part, info("steps"))
    apart = [read_steps(tmp_path / name) for name in "ab"]
    whole = joined(apart)
    together = read_steps(tmp_path / "a", tmp_path / "b")
    assert set(together.labels.collection) == {"a/steps.parquet", "b/steps.parquet"}
    for samples in (whole, together):
        assert samples.plan.tolist() == [row.plan for row in rows]
        assert samples.compute.table.tolist() == [name for row in rows for name in row.table_name]
    tested = with_role(whole, "test")
    of_test = [row for row in rows if row.role == "test"]
    assert tested.plan_ids.tolist() == [row.plan_ids for row in of_test]
    assert tested.compute.shards.rows.tolist() == [n for row in of_test for n in row.num_embeddings]
    part = tested.take(np.array([3, 0]))
    assert part.parts_ms.tolist() == tested.parts_ms[[3, 0]].tolist()
    assert part.compute.shards.rows.tolist() == [n for i in (3, 0) for n in of_test[i].num_embeddings]


def test_no_samples_have_the_shapes_of_some(made_up_rows, tmp_path):
    for kind, read, none in (("compute", read_compute, no_compute()), ("steps", read_steps, no_steps())):
        write_rows(tmp_path / f"{kind}.parquet", made_up_rows[kind][:4], info(kind))
        assert len(none) == 0
        assert len(joined([none, read(tmp_path), none])) == 4
        assert len(with_role(none, "oracle")) == 0


def test_a_device_beyond_the_number_of_devices_is_named(made_up_rows, tmp_path):
    row = dataclasses.replace(made_up_rows["steps"][0], device=2, num_devices=2)
    with pytest.raises(InputError, match=r"steps\.parquet: column 'device', row 0: 2, expected less than 2"):
        write_rows(tmp_path / "steps.parquet", [row], info("steps"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pack_ids_ms", 0.0, "column 'pack_ids_ms', row 0: 0.0, expected a number from 1e-09"),
        ("plan_ids", float("nan"), "column 'plan_ids', row 0: nan"),
        ("samples", -1, "column 'samples', row 0: -1"),
        ("table_name", [], "column 'table_name', row 0: 0 entries"),
    ],
)
def test_impossible_values_of_steps_are_named(made_up_rows, tmp_path, field, value, message):
    row = dataclasses.replace(made_up_rows["steps"][0], **{field: value})
    with pytest.raises(InputError, match=r"steps\.parquet: .*" + message):
        write_rows(tmp_path / "steps.parquet", [row], info("steps"))
    assert not list(tmp_path.iterdir())


def test_a_folder_without_samples_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no file named steps\*\.parquet.*shardgym collect"):
        read_steps(tmp_path)


@pytest.mark.repository
def test_training_data_that_ships_can_be_read():
    """Settings of older collections name things that are no longer collected."""
    folders = {path.parent for path in MODELS.glob("*/compute*.parquet")}
    assert sum(len(read_compute(folder)) for folder in folders) > 10_000


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.95])
def test_a_truncated_file_is_named(file, keep):
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(InputError, match=r"compute-a\.parquet: not a whole Parquet file"):
        read_file(file, "compute")


def test_another_schema_version_is_named(file):
    table = pq.read_table(file)
    text = info("compute").to_json().replace("shardgym.samples/1", "shardgym.samples/9")
    pq.write_table(table.replace_schema_metadata({b"shardgym": text.encode()}), file)
    with pytest.raises(InputError, match=r"compute-a\.parquet: metadata: schema: .*samples/9"):
        read_file(file, "compute")


def test_another_machine_or_kind_is_named(file):
    with pytest.raises(InputError, match="hardware: measured on 'made-up', expected 'h100'"):
        read_file(file, "compute", hardware="h100")
    with pytest.raises(InputError, match="kind: expected a file of 'steps' rows, it holds 'compute' rows"):
        read_file(file, "steps")


def test_files_of_two_machines_do_not_make_a_data_set(made_up_rows, file):
    write_rows(file.with_name("compute-b.parquet"), made_up_rows["compute"][5:9], info("compute", "h100"))
    with pytest.raises(InputError, match=r"compute-b\.parquet: hardware: measured on 'h100', expected 'made-up'"):
        read_compute(file.parent)


def test_a_missing_column_is_named(file):
    rewritten(file, pq.read_table(file).drop_columns(["pooling_factor"]))
    with pytest.raises(InputError, match=r"compute-a\.parquet: column 'pooling_factor' is missing"):
        read_file(file, "compute")


def test_a_column_of_another_type_is_named(file):
    table = pq.read_table(file)
    at = table.column_names.index("batch_size")
    rewritten(file, table.set_column(at, "batch_size", pa.array(["x"] * 5)))
    with pytest.raises(InputError, match="column 'batch_size' has type string, expected int64"):
        read_file(file, "compute")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("forward_ms", float("nan"), "column 'forward_ms', row 0: nan"),
        ("num_embeddings", [0], "column 'num_embeddings', row 0: 0"),
        ("reuse_histogram", [[2.0] + [0.0] * 16], "column 'reuse_histogram', row 0: 2.0"),
        ("precision", "fp8", "column 'precision', row 0: fp8, expected one of fp32, fp16"),
        ("table_name", ["a", "b"], "column 'table_name', row 0: 2 entries, expected 1"),
        ("num_embeddings", None, "num_embeddings"),
    ],
)
def test_impossible_features_are_named(made_up_rows, tmp_path, field, value, message):
    row = next(row for row in made_up_rows["compute"] if len(row.num_embeddings) == 1)
    with pytest.raises(InputError, match=r"compute\.parquet: .*" + message):
        write_rows(tmp_path / "compute.parquet", [dataclasses.replace(row, **{field: value})], info("compute"))
    assert not list(tmp_path.iterdir())


def test_without_pyarrow_the_error_names_the_extra(monkeypatch, file):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'shardgym\[data\]'"):
        read_info(file)


def test_a_foreign_parquet_file_is_named(tmp_path):
    path = tmp_path / "compute-a.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match=r"compute-a\.parquet: .*holds no samples of ShardGym"):
        read_file(path, "compute")


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="no rows"):
        write_rows(tmp_path / "steps.parquet", [], info("steps"))
