"""What a user can get wrong: one clear line, exit code 1 or 2, no traceback, no partial file."""

from __future__ import annotations

import contextlib
import json
import os
import random
from pathlib import Path

import pytest
from evaluation_toys import Halves, toy_tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardgym import load_pool
from shardgym.cli import main
from shardgym.costs.simulator.weights import find_weights, load_weights
from shardgym.errors import InputError

TASK = toy_tasks(1)[0].to_dict()
PLAN = Halves().solve(toy_tasks(1)[0], None).to_dict()
CSV = "name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,2\nitem,50,8,1\n"

#: Values that belong nowhere, or only where they are in range.
WEIRD = [None, True, -1, 0, 1.5, 10**30, 1e308, "", "x" * 300, "\u0000", [], {}, [[]], {"a": 1}, "2", [1, 2], 2**63]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with a valid task, plan and table file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(TASK))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "tables.csv").write_text(CSV)
    return tmp_path


def listing(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys, folder, arguments, part=""):
    """Run a command that must fail; return its one line."""
    before = listing(folder)
    code = main(arguments)
    captured = capsys.readouterr()
    assert code in (1, 2), captured
    assert captured.out == ""
    assert captured.err.startswith("shardgym: error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert part in captured.err
    assert listing(folder) == before
    return captured.err


def refused_tables(name, part):
    """Read tables that must be refused; return the one line."""
    with pytest.raises(InputError) as caught:
        load_pool(name)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


SOLVE = ["solve", "task.json", "--solver", "dim_greedy", "-o", "out.json"]
SHOW = ["plan", "show", "task.json", "plan.json"]
ROOFLINE = ["--cost", "roofline", "--oracle", "roofline"]
RUN = ["run", "--suite", "task.json", *ROOFLINE, "--solver", "random", "--out", "out"]


def with_field(data, path, value):
    """Return a deep copy with one field set; a path that does not exist is made."""
    copy = json.loads(json.dumps(data))
    *parents, last = path
    node = copy
    for part in parents:
        node = node[part]
    node[last] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        (("batch_size",), -4, "batch_size: expected at least 1, got -4"),
        (("batch_sise",), 64, "batch_sise"),
        (("schema",), "shardgym.task/99", "schema"),
        (("tables", 0, "num_embeddings"), 0, "tables.0.num_embeddings"),
        (("tables", 0, "ids"), {"kind": "zpif", "s": 1}, "tables.0.ids"),
        (("tables", 0, "reuse_histogram"), [0.5] * 17, "bins must sum to 1"),
        (("tables", 1, "name"), "t0", "table names must be distinct"),
        (("topology", "num_devices"), 0, "num_devices"),
        (("topology", "memory_bytes"), [480], "memory_bytes has 1 entries for 2 devices"),
        (("topology", "device"), "quantum", "unknown"),
    ],
)
def test_a_task_with_a_wrong_field_is_refused_by_name(here, capsys, path, value, part):
    (here / "task.json").write_text(json.dumps(with_field(TASK, path, value)))
    refused(capsys, here, SOLVE, part)


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        (("task_hash",), "0" * 64, "plan is for task 000000000000"),
        (("shards", 0, "rows"), [5, 5], "expected start < end"),
        (("shards", 0, "devices"), [-1], "shards.0.devices"),
        (("shards", 0, "devise"), 1, "shards.0.devise"),
    ],
)
def test_a_plan_with_a_wrong_field_is_refused_by_name(here, capsys, path, value, part):
    (here / "plan.json").write_text(json.dumps(with_field(PLAN, path, value)))
    refused(capsys, here, SHOW, part)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"task"', '{"tables": NaN}', "\x00", "[" * 100_000, json.dumps(TASK)[:-20]]
)
@pytest.mark.parametrize("command", [SOLVE, SHOW, ["measure", "task.json", "plan.json", "--cost", "roofline"], RUN])
def test_a_task_file_that_is_no_task_is_refused(here, capsys, command, text):
    (here / "task.json").write_text(text)
    refused(capsys, here, command, "task.json")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x80abc"])
@pytest.mark.parametrize("command", [SOLVE, RUN])
def test_files_that_are_not_text_are_refused(here, capsys, command, content):
    (here / "task.json").write_bytes(content)
    refused(capsys, here, command, "not a UTF-8 text file")
    (here / "tables.csv").write_bytes(content)
    refused_tables("tables.csv", "not a UTF-8 text file")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run", "--suite", "quick-v2"], "did you mean quick-v1"),
        (["run", "--suite", "nowhere.yaml"], "cannot read nowhere.yaml"),
        ([*RUN, "--solver", "dimgreedy"], "did you mean dim_greedy"),
        ([*RUN, "--solver", "no_such_module:Solver"], "cannot import 'no_such_module'"),
        ([*RUN, "--solver", "evaluation_toys:Halvs"], "did you mean Halves"),
        ([*RUN, "--cost", "roofine"], "did you mean roofline"),
        ([*RUN, "--limit", "0"], "--limit"),
        ([*RUN, "--seed", "-1"], "--seed"),
        ([*RUN, "--time-limit", "nan"], "--time-limit"),
        ([*RUN, "--resume", "al"], "did you mean all"),
        ([*RUN, "--out", "task.json"], "task.json"),
        (["measure", "task.json", "plan.json", "--device", "gpu"], "--device"),
        (["verify", "nowhere"], "does not exist"),
        (["verify", "."], "holds no records.jsonl"),
        (["leaderboard", "task.json"], "task.json"),
        (["leaderboard"], "results does not exist"),
        (["solve", "quik-v1/0", "--solver", "random", "-o", "out.json"], "did you mean quick-v1"),
        (["plan", "show", "quick-v1/0", "plan.json"], "plan is for task"),
        (["measure", ".", "plan.json", "--cost", "roofline"], "cannot read ."),
    ],
)
def test_wrong_names_get_a_close_match_or_the_place(here, capsys, arguments, part):
    refused(capsys, here, arguments, part)


def test_a_task_that_cannot_fit_is_exit_code_1(here, capsys):
    (here / "task.json").write_text(json.dumps(with_field(TASK, ("topology", "memory_bytes"), [480, 100])))
    assert main(SOLVE) == 1
    assert "fits on no device" in capsys.readouterr().err
    assert not (here / "out.json").exists()


def test_a_pipe_in_place_of_a_file_is_refused(here, capsys):
    """Nobody writes into it: who opened it would wait for ever."""
    (here / "data").mkdir()
    os.mkfifo(here / "ids.pt")
    with pytest.raises(InputError, match="it is no regular file"):
        load_pool(here / "ids.pt")
    os.mkfifo(here / "data/compute.parquet")
    refused(capsys, here, ["pretrain", "data", "--out", "weights"], "it is no regular file")


def test_what_a_library_cannot_read_is_one_line(here, capsys):
    """A list without end, a tag that does not fit, and folders deeper than functions may call each other."""
    endless = f"random,x={'[' * 100_000}"
    refused(capsys, here, [*RUN[:-4], "--solver", endless, "--out", "out"], "settings of solver 'random'")
    (here / "suite.yaml").write_text("name: !!bool 7\n")
    refused(capsys, here, ["run", "--suite", "suite.yaml", *ROOFLINE, "--out", "out"], "not valid YAML")
    path = here
    for _ in range(1500):
        path = path / "d"
        os.mkdir(path)  # noqa: PTH102 - faster
    (path / "records.jsonl").write_text("{")
    for command in ("leaderboard", "verify"):
        assert main([command, str(here / "d")]) in (1, 2)
        assert "unexpected" not in capsys.readouterr().err
    (path / "records.jsonl").unlink()
    while path != here:  # who removes such folders calls itself, too
        path.rmdir()
        path = path.parent


@pytest.mark.parametrize("seed", range(3))
def test_damaged_weights_of_a_simulator_are_one_line(tmp_path, seed):
    whole = find_weights(None, "oracle", None).read_bytes()
    rng = random.Random(seed)
    for _ in range(20):
        position = rng.randrange(3000)
        path = tmp_path / "oracle.safetensors"
        path.write_bytes(whole[:position] + rng.randbytes(rng.randint(0, 3)) + whole[position + rng.randint(0, 3) :])
        with contextlib.suppress(InputError):  # or nothing that matters was hit
            load_weights(path, "oracle")


@pytest.mark.parametrize("position", range(10))
def test_truncated_records_are_found(here, capsys, position):
    assert main(RUN) == 0
    path = here / "out" / "records.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * position // 10] + b"\n")
    capsys.readouterr()
    line = 1 + content[: len(content) * position // 10].count(b"\n")
    refused(capsys, here, RUN, f"records.jsonl:{line}: ")
    assert main(["verify", "out"]) == 1
    assert "unreadable" in capsys.readouterr().out


def test_run_info_that_is_damaged_is_refused(here, capsys):
    assert main(RUN) == 0
    capsys.readouterr()
    (here / "out" / "run.json").write_text("{")
    refused(capsys, here, RUN, "run.json")
    refused(capsys, here, ["leaderboard", "out"], "run.json")


def test_an_output_that_is_no_regular_file_is_refused(here, capsys):
    """A rename over a device or a pipe would remove it."""
    os.mkfifo(here / "pipe")
    for output in ("pipe", os.devnull):
        refused(capsys, here, [*SOLVE[:-1], output, "--force"], "not a regular file")
    assert (here / "pipe").is_fifo()
    assert Path(os.devnull).is_char_device()


def test_a_folder_that_cannot_be_written_is_refused(here, capsys):
    (here / "blocked").write_text("a file where a folder should go")
    refused(capsys, here, [*RUN[:-1], "blocked/out"], "blocked")


# --- mutations of valid files: whatever happens, it is a result or one line ---------------------------------------

PATHS = [
    ("batch_size",), ("tables",), ("topology",), ("precision",), ("name",), ("schema",), ("optimizer",), ("extra",),
    ("tables", 0, "name"), ("tables", 0, "num_embeddings"), ("tables", 0, "embedding_dim"),
    ("tables", 0, "pooling_factor"), ("tables", 0, "ids"), ("tables", 0, "reuse_histogram"),
    ("topology", "num_devices"), ("topology", "memory_bytes"), ("topology", "device"),
    ("topology", "fast_domain_size"), ("topology", "intra_bandwidth"),
]  # fmt: skip
FUZZ = settings(
    derandomize=True, max_examples=150, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


def survives(capsys, arguments, output=None):
    """Run a command; it must end with a result or with one line."""
    if output is not None:
        output.unlink(missing_ok=True)
    code = main(arguments)
    captured = capsys.readouterr()
    assert code in (0, 1, 2)
    if captured.err:
        assert captured.err.startswith("shardgym: error: ")
        assert captured.err.count("\n") == 1
    assert (code == 0) or captured.err or captured.out
    if output is not None:
        assert output.exists() == (code == 0)


@FUZZ
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(WEIRD)), min_size=1, max_size=2))
def test_any_mutation_of_a_task_is_a_result_or_one_line(here, capsys, changes):
    data = TASK
    for path, value in changes:
        try:
            data = with_field(data, path, value)
        except (TypeError, KeyError, IndexError):
            continue
    Path("task.json").write_text(json.dumps(data))
    survives(capsys, SOLVE, Path("out.json"))


@FUZZ
@given(
    index=st.integers(0, 3),
    field=st.sampled_from(["table", "rows", "columns", "device", "x"]),
    value=st.sampled_from(WEIRD),
)
def test_any_mutation_of_a_plan_is_a_result_or_one_line(here, capsys, index, field, value):
    Path("plan.json").write_text(json.dumps(with_field(PLAN, ("shards", index, field), value)))
    survives(capsys, [*SHOW, "--cost", "roofline"])


@FUZZ
@given(position=st.integers(0, len(CSV)), inserted=st.text(max_size=4), dropped=st.integers(0, 30))
def test_any_mutation_of_a_table_file_is_a_pool_or_one_line(here, position, inserted, dropped):
    text = CSV[:position] + inserted + CSV[position + dropped :]
    Path("tables.csv").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    told = "a pool"
    try:
        load_pool("tables.csv")
    except InputError as error:
        told = str(error)
    assert "\n" not in told


@FUZZ
@given(position=st.integers(0, 3000), inserted=st.binary(max_size=3), dropped=st.integers(0, 60))
def test_any_mutation_of_records_is_reported_record_by_record(here, capsys, position, inserted, dropped):
    """Bytes are changed anywhere; neither verify nor leaderboard raises."""
    if not Path("out").exists():
        assert main(RUN) == 0
        Path("whole").write_bytes(Path("out/records.jsonl").read_bytes())
    whole = Path("whole").read_bytes()
    Path("out/records.jsonl").write_bytes(whole[:position] + inserted + whole[position + dropped :])
    capsys.readouterr()
    survives(capsys, ["verify", "out"])
    survives(capsys, ["leaderboard", "out"])
