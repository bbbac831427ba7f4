"""Files of samples: written and read whole, and refused with file and field when they are not what they should be."""

from __future__ import annotations

import numpy as np
import pytest

from shardgym import InputError, MissingDependencyError

pa = pytest.importorskip("pyarrow", reason="needs the extra 'data'")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'data'")

from shardgym.costs.simulator.sample_files import (  # noqa: E402
    DataInfo,
    read_comm,
    read_compute,
    read_file,
    read_info,
    write_rows,
)


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


def test_comm_rows_come_back_as_they_were_written(made_up_rows, tmp_path):
    rows = made_up_rows["comm"][:6]
    write_rows(tmp_path / "comm-1.parquet", rows, info("comm"))
    samples = read_comm(tmp_path)
    assert samples.counts.tolist() == [row.num_devices for row in rows]
    assert samples.offsets_ms.tolist() == [x for row in rows for x in row.start_offsets_ms]
    assert samples.ms[:, 1].tolist() == [x for row in rows for x in row.backward_ms]


def test_a_folder_without_samples_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no file named comm\*\.parquet.*shardgym collect"):
        read_comm(tmp_path)


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
    with pytest.raises(InputError, match="kind: expected a file of 'comm' rows, it holds 'compute' rows"):
        read_file(file, "comm")


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
        write_rows(tmp_path / "compute.parquet", [row._replace(**{field: value})], info("compute"))
    assert not list(tmp_path.iterdir())


def test_wrong_numbers_of_devices_are_named(made_up_rows, tmp_path):
    row = made_up_rows["comm"][0]
    with pytest.raises(InputError, match=r"column 'widths', row 0: \d entries, expected 7"):
        write_rows(tmp_path / "comm.parquet", [row._replace(num_devices=7)], info("comm"))


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
        write_rows(tmp_path / "comm.parquet", [], info("comm"))
