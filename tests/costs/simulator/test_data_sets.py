"""Data sets for pre-training: files written and read, what is read together, what is left out, and at which pace."""

import numpy as np
import pytest

from shardgym import InputError, MissingDependencyError

pa = pytest.importorskip("pyarrow", reason="needs the extra 'data'")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'data'")

from shardgym.costs.simulator.weights import SHIPPED  # noqa: E402
from shardgym.training.data import at_one_pace, load_data, paces_of  # noqa: E402
from shardgym.training.samples import STEP_PARTS, joined, read_compute, read_file, read_steps  # noqa: E402

FORWARD, BACKWARD = 1.5, 1.2


def test_rows_come_back_as_they_were_written(made_up_rows, write_samples, tmp_path):
    rows, steps = made_up_rows["compute"][:7], made_up_rows["steps"]
    rows[6] = rows[6] | {"batch_size": 4096, "precision": "fp16", "optimizer": "rowwise_adagrad"}
    write_samples(tmp_path / "a", {"compute-1": rows[:3], "compute-2": rows[3:], "steps": steps[:30]})
    write_samples(tmp_path / "b", {"steps": steps[30:]})
    samples = read_compute(tmp_path / "a")
    assert samples.content.tolist() == [row["content"] for row in rows]
    assert samples.collection.tolist() == ["compute-1.parquet"] * 3 + ["compute-2.parquet"] * 4
    assert samples.counts.tolist() == [len(row["num_embeddings"]) for row in rows]
    assert samples.shards.rows.tolist() == [n for row in rows for n in row["num_embeddings"]]
    np.testing.assert_allclose(samples.shards.reuse, [h for row in rows for h in row["reuse_histogram"]], rtol=1e-6)
    assert samples.ms.tolist() == [[row["forward_ms"], row["backward_ms"]] for row in rows]
    part = samples.take(np.array([4, 1]))
    assert part.shards.columns.tolist() == [n for i in (4, 1) for n in rows[i]["embedding_dim"]]
    last = samples.take(np.array([6])).shards
    assert (last.batch[0], last.element_bytes[0], last.state_per_weight[0], last.state_per_row[0]) == (4096, 2, 0, 1)
    assert len(joined([samples, part, read_compute(tmp_path / "b")])) == 9
    together = read_steps(tmp_path / "a", tmp_path / "b")
    assert set(together.compute.collection) == {"a/steps.parquet", "b/steps.parquet"}
    tested, expected = together.of("test"), [row for row in steps if row["role"] == "test"]
    for name in ("pace", "samples", "plan_shards", "plan_ids", "plan_columns"):
        assert getattr(tested, name).tolist() == [row[name] for row in expected]
    assert tested.parts_ms.tolist() == [[row[f"{part}_ms"] for part in STEP_PARTS] for row in expected]


def test_what_is_no_file_of_samples_is_named(made_up_rows, data_folder, write_samples, tmp_path, monkeypatch):
    path = tmp_path / "compute.parquet"
    whole = (data_folder / "compute.parquet").read_bytes()
    table = pq.read_table(data_folder / "compute.parquet")
    at = table.column_names.index("batch_size")
    for write, message in (
        (lambda: path.write_bytes(b""), ""),
        (lambda: path.write_bytes(whole[: len(whole) // 3]), ""),
        (lambda: pq.write_table(pa.table({"a": [1]}), path), ".*shardgym"),
        (lambda: pq.write_table(table.drop_columns(["pooling_factor"]), path), ".*pooling_factor"),
        (lambda: pq.write_table(table.set_column(at, "batch_size", pa.array(["x"] * len(table))), path), ".*x"),
    ):
        write()
        with pytest.raises(InputError, match=rf"compute\.parquet: not a complete file of compute samples{message}"):
            load_data(tmp_path)
    without = [{name: value for name, value in made_up_rows["compute"][0].items() if name != "forward_ms"}]
    with pytest.raises(InputError, match=r"new\.parquet: cannot write these compute rows: .*forward_ms"):
        write_samples(tmp_path, {"new": without})
    assert not (tmp_path / "new.parquet").exists()
    path.unlink()
    with pytest.raises(InputError, match=r"no compute\*\.parquet or steps\*\.parquet, as 'shardgym collect'"):
        load_data(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'shardgym\[data\]'"):
        read_file(data_folder / "compute.parquet", "compute")


def test_a_folder_is_one_data_set_and_roles_are_apart_in_it(made_up_rows, data_folder):
    data = load_data(data_folder)
    assert (len(data.compute), len(data.steps)) == (len(made_up_rows["compute"]), len(made_up_rows["steps"]))
    assert data.hardware == "made-up"
    assert set(data.digests) == set(data.settings) == {"compute.parquet", "steps.parquet"}
    assert data.trainable_roles() == ["oracle", "judge"]
    compute, steps = data.of("judge")
    assert set(compute.role) == set(steps.compute.role) == {"judge"}


def test_steps_are_of_one_machine_and_shard_sets_need_not_be(made_up_rows, write_samples, tmp_path):
    here = write_samples(tmp_path / "here", made_up_rows)
    there = write_samples(tmp_path / "there", {"compute": made_up_rows["compute"]}, "h2")
    data = load_data(there, here)
    assert (data.hardware, len(data.compute)) == ("made-up", 2 * len(made_up_rows["compute"]))
    assert data.settings["there/compute.parquet"] == {"of": "h2"}
    (here / "steps.parquet").unlink()
    with pytest.raises(InputError, match=r"files come from several machines \(h2, made-up\), expected one"):
        load_data(there, here)


@pytest.mark.parametrize("kind", ["compute", "steps"])
def test_one_kind_may_be_missing_and_roles_need_samples_of_the_other(made_up_rows, write_samples, tmp_path, kind):
    data = load_data(write_samples(tmp_path / "a", {kind: made_up_rows[kind]}))
    assert {"compute": len(data.compute), "steps": len(data.steps)}[kind] == len(made_up_rows[kind])
    assert (len(data.compute) == 0) != (len(data.steps) == 0)

    def without(role):
        return made_up_rows | {kind: [row for row in made_up_rows[kind] if row["role"] != role]}

    assert load_data(write_samples(tmp_path / "b", without("judge"))).trainable_roles() == ["oracle"]
    with pytest.raises(InputError, match="role 'test' needs 2 samples of each kind, got 0"):
        load_data(write_samples(tmp_path / "c", without("test")))


def test_a_device_in_steps_whose_shard_set_the_other_role_learns_from_is_left_out(
    made_up_rows, write_samples, tmp_path
):
    """A small shard set may be drawn for both by chance: it is the oracle's, unless the judge measured it alone."""
    of_oracle = next(row for row in made_up_rows["steps"] if row["role"] == "oracle")
    of_judge = next(row for row in made_up_rows["compute"] if row["role"] == "judge")
    leaks = [of_oracle | {"role": "judge"}, of_oracle | {"content": of_judge["content"]}]
    data = load_data(write_samples(tmp_path / "a", made_up_rows | {"steps": [*made_up_rows["steps"], *leaks]}))
    assert len(data.steps) == len(made_up_rows["steps"])


@pytest.mark.repository
def test_nothing_leaks_in_what_ships():
    """The judge and the tests have contents of their own, and tests have tables that nobody learns from."""
    (folder,) = (path.parent for path in SHIPPED.glob("*/steps.parquet"))
    data = load_data(folder)
    assert len(data.steps) > 9_000
    contents, tables = {}, {}
    for role in ("oracle", "judge", "test"):
        compute, steps = data.of(role)
        contents[role] = {*compute.content.tolist(), *steps.compute.content.tolist()}
        tables[role] = set()
    for path in folder.glob("*.parquet"):
        rows = read_file(path, path.name.split("-")[0].removesuffix(".parquet"))[1].select(["role", "table_name"])
        for role, names in zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True):
            if role in tables:
                tables[role] |= set(names)
    assert not contents["oracle"] & contents["judge"]
    assert not contents["test"] & (contents["oracle"] | contents["judge"])
    assert not tables["test"] & (tables["oracle"] | tables["judge"])


def test_the_pace_of_a_day_is_found_and_divided_by(made_up_rows, data_folder, write_samples, tmp_path):
    days = {"compute-fast": [], "compute-slow": []}
    for row in made_up_rows["compute"]:
        if int(row["content"][0], 16) % 3:
            days["compute-fast"].append(row)
        else:
            times = {"forward_ms": FORWARD * row["forward_ms"], "backward_ms": BACKWARD * row["backward_ms"]}
            days["compute-slow"].append(row | times)
    before = load_data(write_samples(tmp_path / "a", days))
    found = paces_of(before)
    assert found["compute-fast.parquet"] == (1.0, 1.0)
    assert found["compute-slow.parquet"] == (pytest.approx(FORWARD, rel=0.03), pytest.approx(BACKWARD, rel=0.03))
    expected = [(row["forward_ms"], row["backward_ms"]) for row in days["compute-fast"]]
    expected += [(row["forward_ms"] / FORWARD, row["backward_ms"] / BACKWARD) for row in days["compute-slow"]]
    np.testing.assert_allclose(at_one_pace(before, found).compute.ms, expected, rtol=0.03)
    assert paces_of(load_data(data_folder)) == {}


def test_steps_are_taken_to_the_pace_1_by_the_median_of_what_was_measured_beside_them(
    made_up_rows, write_samples, tmp_path
):
    expected = load_data(write_samples(tmp_path / "a", made_up_rows)).steps
    times = ("forward_ms", "backward_ms", *(f"{part}_ms" for part in STEP_PARTS))
    paces = [1.4, 1.5, 9.0]
    rows = [
        row | {"pace": paces[n % 3]} | {name: 1.5 * row[name] for name in times}
        for n, row in enumerate(made_up_rows["steps"])
    ]
    data = load_data(write_samples(tmp_path / "b", made_up_rows | {"steps": rows}))
    found = at_one_pace(data, paces_of(data)).steps
    np.testing.assert_allclose(found.compute.ms, expected.compute.ms)
    np.testing.assert_allclose(found.parts_ms, expected.parts_ms)
    assert (found.pace == 1).all()
