"""Data sets for pre-training: what is read together, and what may not be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardgym import InputError

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

from shardgym.costs.simulator.sample_files import DataInfo, write_rows
from shardgym.training.data import load_data


def write(folder, rows, hardware="made-up"):
    folder.mkdir(exist_ok=True)
    for kind, of_kind in rows.items():
        info = DataInfo(kind, hardware, {}, {"of": hardware}, "2026-01-01T00:00:00+00:00")
        write_rows(folder / f"{kind}.parquet", of_kind, info)
    return folder


def with_row(rows, kind, row):
    return {**rows, kind: [*rows[kind], row]}


def without(rows, kind, role):
    return {**rows, kind: [row for row in rows[kind] if row.role != role]}


def test_both_kinds_of_a_folder_are_one_data_set(made_up_rows, data_folder):
    data = load_data(data_folder)
    assert len(data.compute) == len(made_up_rows["compute"])
    assert len(data.steps) == len(made_up_rows["steps"])
    assert (data.hardware, data.compute_hardware, data.left_out) == ("made-up", {}, 0)
    assert set(data.digests) == set(data.settings) == {"compute-0.parquet", "steps-0.parquet"}
    assert data.trainable_roles() == ["oracle", "judge"]
    compute, steps = data.of("judge")
    assert set(compute.labels.role) == set(steps.labels.role) == {"judge"}


def test_shard_sets_may_be_of_other_machines_than_the_steps(made_up_rows, tmp_path):
    compute = made_up_rows["compute"]
    write(tmp_path / "here", made_up_rows)
    write(tmp_path / "there", {"compute": [replace(row, sample_id=f"there/{row.sample_id}") for row in compute]}, "h2")
    data = load_data(tmp_path / "there", tmp_path / "here")
    assert (data.hardware, data.compute_hardware) == ("made-up", {"there/compute.parquet": "h2"})
    assert len(data.compute) == 2 * len(compute)
    elsewhere = [name in data.compute_hardware for name in data.compute.labels.collection]
    assert sum(elsewhere) == len(compute)
    assert data.settings["there/compute.parquet"] == {"of": "h2"}


def test_steps_are_of_one_machine_and_so_is_compute_without_them(made_up_rows, tmp_path):
    write(tmp_path / "here", made_up_rows)
    for kind in ("steps", "compute"):
        others = {kind: made_up_rows[kind]}
        folders = write(tmp_path / "there", others, "h2"), tmp_path / "here"
        if kind == "compute":
            (tmp_path / "here" / "steps.parquet").unlink()
            (tmp_path / "there" / "steps.parquet").unlink()
        with pytest.raises(InputError, match=r"files of several machines \(h2, made-up\), expected one"):
            load_data(*folders)


@pytest.mark.parametrize("kind", ["compute", "steps"])
def test_one_kind_may_be_missing(made_up_rows, tmp_path, kind):
    data = load_data(write(tmp_path / kind, {kind: made_up_rows[kind]}))
    sizes = {"compute": len(data.compute), "steps": len(data.steps)}
    assert sizes == {"compute": 0, "steps": 0, kind: len(made_up_rows[kind])}
    assert data.hardware == "made-up"
    assert data.trainable_roles() == ["oracle", "judge"]


def test_a_folder_without_both_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no file named compute\*\.parquet or steps\*\.parquet: expected a folder"):
        load_data(tmp_path)


@pytest.mark.parametrize("kind", ["compute", "steps"])
@pytest.mark.parametrize("role", ["test", "plans"])
def test_a_table_that_is_tested_and_learned_is_a_leak(made_up_rows, tmp_path, kind, role):
    leak = replace(made_up_rows[kind][0], role=role, sample_id="leak", content="0" * 64)
    with pytest.raises(InputError, match=r"table 't\d+' is in rows for testing and in rows of role 'oracle'"):
        load_data(write(tmp_path / "a", with_row(made_up_rows, kind, leak)))


def test_a_content_of_two_roles_is_a_leak(made_up_rows, tmp_path):
    leak = replace(made_up_rows["compute"][0], role="judge", sample_id="leak")
    with pytest.raises(InputError, match="a compute content is in role 'judge' and in role 'oracle'"):
        load_data(write(tmp_path / "a", with_row(made_up_rows, "compute", leak)))


def test_a_device_in_steps_whose_shard_set_the_other_role_learns_from_is_left_out(made_up_rows, tmp_path):
    """A small shard set may be drawn for both by chance: it is the oracle's, unless the judge measured it alone."""
    of_oracle = next(row for row in made_up_rows["steps"] if row.role == "oracle")
    of_judge = next(row for row in made_up_rows["compute"] if row.role == "judge")
    rows = with_row(made_up_rows, "steps", replace(of_oracle, role="judge", sample_id="drawn twice"))
    rows = with_row(rows, "steps", replace(of_oracle, content=of_judge.content, sample_id="alone before"))
    data = load_data(write(tmp_path / "a", rows))
    assert data.left_out == 2
    names = set(data.steps.labels.sample_id)
    assert names == {row.sample_id for row in made_up_rows["steps"]}


@pytest.mark.parametrize("kind", ["compute", "steps"])
def test_without_test_rows_errors_are_not_made_up(made_up_rows, tmp_path, kind):
    with pytest.raises(InputError, match=f"0 {kind} samples of role 'test', expected at least 2"):
        load_data(write(tmp_path / "a", without(made_up_rows, kind, "test")))


@pytest.mark.parametrize("kind", ["compute", "steps"])
def test_a_role_without_samples_of_a_kind_is_not_trained(made_up_rows, tmp_path, kind):
    assert load_data(write(tmp_path / "a", without(made_up_rows, kind, "judge"))).trainable_roles() == ["oracle"]
