"""What a user can get wrong: one clear line, exit code 1 or 2, no traceback, no partial file."""

import json
from pathlib import Path

import pytest
from evaluation_toys import toy_tasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardgym.cli import main

TASK = toy_tasks(1)[0].to_dict()

#: Values that belong nowhere, or only where they are in range.
WEIRD = [None, True, -1, 0, 1.5, 10**30, 1e308, "", "x" * 300, "\u0000", [], {}, [[]], {"a": 1}, "2", [1, 2], 2**63]


def listing(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SOLVE = ["solve", "task.json", "--solver", "dim_greedy", "-o", "out.json"]
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
    ("arguments", "part"),
    [
        (["run", "--suite", "quick-v3"], "did you mean quick-v2"),
        (["run", "--suite", "nowhere.yaml"], "cannot read nowhere.yaml"),
        ([*RUN, "--out", "task.json"], "task.json"),
        (["leaderboard", "task.json"], "task.json"),
        (["solve", "quik-v2/0", "--solver", "random", "-o", "out.json"], "did you mean quick-v2"),
    ],
)
def test_wrong_names_get_a_close_match_or_the_place(here, capsys, arguments, part):
    before = listing(here)
    assert main(arguments) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("shardgym: error: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    assert part in captured.err
    assert listing(here) == before


PATHS = [
    ("batch_size",), ("tables",), ("topology",), ("precision",), ("schema",), ("tables", 0, "num_embeddings"),
    ("tables", 0, "pooling_factor"), ("tables", 0, "ids"), ("tables", 0, "reuse_histogram"),
    ("topology", "memory_bytes"), ("topology", "fast_domain_size"),
]  # fmt: skip
FUZZ = settings(
    derandomize=True, max_examples=40, deadline=None,
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
