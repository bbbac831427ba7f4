"""Folders of strangers: forged, damaged and hostile records are named and refused, and nothing outside is touched."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import random
import re
import shutil

import pytest

from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.files import MAX_LINE_BYTES, only_writer, read_regular

SEED = 20260722


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A folder that `submit` lets through; made once."""
    folder = tmp_path_factory.mktemp("honest") / "submission"
    command = [
        "run",
        "--suite",
        "tiny-v1",
        "--cost",
        "simulator",
        "--solver",
        "dim_greedy",
        "--solver",
        "mine=random",
        "--out",
        str(folder),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*command, "--no-isolate"]) == 0
        assert main(["submit", str(folder), "--card"]) == 0
    card = (folder / "card.yaml").read_text().replace("'?'", "'defaults of 1.0'")
    (folder / "card.yaml").write_text(card)
    return folder


@pytest.fixture
def folder(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "given")
    return tmp_path / "given"


def edit_line(folder, change, number=1):
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[number])
    change(record)
    lines[number] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")


def edit_run(folder, **changes):
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rename_solver(folder, name):
    for file in ("records.jsonl", "run.json", "card.yaml"):
        text = (folder / file).read_text()
        (folder / file).write_text(
            text.replace('"mine"', json.dumps(name)).replace("  mine:", f"  {json.dumps(name)}:")
        )


def replace_by(folder, file, make):
    (folder / file).unlink()
    make(folder / file)


def flatter(record):
    record["cost"]["per_device"] = [[x / 2 for x in row] for row in record["cost"]["per_device"]]


def swap_plans(folder):
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    lines[0]["plan"], lines[-1]["plan"] = lines[-1]["plan"], lines[0]["plan"]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def double(folder):
    path = folder / "records.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")


def drop_line(folder):
    path = folder / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def set_note(text):
    return lambda folder: edit_line(folder, lambda r: r["cost"].update(notes=[text]))


def unnamed_source(folder):
    """Take from all records of the submitted solver what it was made from."""
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["solver"] == "mine":
            record["made_from"] = None
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def pack_beside(folder, change=lambda content: content):
    content = lzma.compress((folder / "records.jsonl").read_bytes())
    (folder / "records.jsonl.xz").write_bytes(change(content))


#: What was done to a folder, and a part of what `submit` says of it.
FORGED = {
    "a flattered score": (lambda f: edit_line(f, flatter), "scores"),
    "plans of other tasks": (swap_plans, "the plan is for another task"),
    "a doubled record": (double, "the second record of this"),
    "a missing record": (drop_line, "1 record missing"),
    "a foreign schema": (lambda f: edit_line(f, lambda r: r.update(schema="shardgym.result/9")), "schema"),
    "a huge line": (lambda f: (f / "records.jsonl").write_bytes(b"[" * (MAX_LINE_BYTES + 1)), "the line has more than"),
    "nested brackets": (lambda f: (f / "records.jsonl").write_text("[" * 100_000 + "\n"), "not valid JSON"),
    "a number of many digits": (lambda f: edit_line(f, lambda r: r.update(seed=int("9" * 4000))), "seed"),
    "billions of tasks": (lambda f: edit_run(f, num_tasks=10**9), "num_tasks: expected at most 100000"),
    "millions of records": (lambda f: edit_run(f, num_tasks=10**5, seeds=[*range(100)]), "records are promised"),
    "HTML in a name": (lambda f: rename_solver(f, "<script>x</script>"), "expected letters A-Z"),
    "Markdown in a name": (lambda f: rename_solver(f, "a|b**"), "expected letters A-Z"),
    "a line end in a name": (lambda f: rename_solver(f, "a\nb"), "expected letters A-Z"),
    "a terminal sequence in a name": (lambda f: rename_solver(f, "\x1b[2Jx"), "expected letters A-Z"),
    "letters that look alike": (lambda f: rename_solver(f, "d\u0456m_greedy"), "expected letters A-Z"),
    "a heading in a note": (set_note("fine\n# Rank 1: me"), "expected one line of printable text"),
    "HTML in a note": (set_note("<img src=x onerror=alert(1)>"), "notes: stored"),
    "a direction mark in a reason": (lambda f: edit_line(f, lambda r: r.update(reason="\u202eok")), "expected one"),
    "nested settings": (
        lambda f: edit_line(f, lambda r: r.update(solver_settings=json.loads('{"a":' * 9 + "1" + "}" * 9))), "nested"),
    "seeds without end": (
        lambda f: edit_run(f, seeds=list(range(20_000)), num_tasks=0), "seeds: expected at most 1000"),
    "solvers without end": (
        lambda f: edit_run(f, solvers=[f"s{i}" for i in range(20_000)], num_tasks=0), "solvers: expected at most 1000"),
    "another judge's settings": (lambda f: edit_run(f, judge_settings={"weights": "/etc/passwd"}), "judge_settings"),
    "settings of no track": (
        lambda f: edit_run(f, judge_settings={"weights": "/etc/passwd"}),
        "settings of judge 'simulator' or oracle 'simulator' are not those of their track of tiny-v1: run with --cost"),
    "an oracle of one's own": (
        lambda f: edit_run(f, oracle_settings={"weights": "own"}),
        "settings of judge 'simulator' or oracle 'simulator' are not those of their track of tiny-v1: run with --cost"),
    "a name with a blank behind": (lambda f: rename_solver(f, "neuroshard_plus "), "no blanks around them"),
    "no name": (lambda f: rename_solver(f, ""), "no blanks around them"),
    "a name that makes nothing": (unnamed_source, "'mine' is no solver of shardgym: run your own as"),
    "no card": (lambda f: (f / "card.yaml").unlink(), "card.yaml is missing: 'shardgym submit"),
    "a link to elsewhere": (lambda f: replace_by(f, "run.json", lambda p: p.symlink_to("/etc/hostname")), "is a link"),
    "a pipe": (lambda f: replace_by(f, "records.jsonl", os.mkfifo), "is missing"),
    "a device": (lambda f: replace_by(f, "records.jsonl", lambda p: p.symlink_to("/dev/zero")), "records.jsonl"),
    "records twice": (pack_beside, "holds records.jsonl and records.jsonl.xz, expected one of them: remove the other"),
    "damaged packed records": (
        lambda f: pack_beside(f, lambda content: content[:-30]) or (f / "records.jsonl").unlink(), "it is cut off"),
    "code": (lambda f: (f / "solver.py").write_text("import os"), "is no part of a submission"),
    "pickles": (lambda f: (f / "tasks").mkdir() or (f / "tasks" / "w.pt").write_bytes(b"\x80"), "is no part"),
    "YAML that makes objects": (
        lambda f: (f / "card.yaml").write_text("!!python/object/apply:os.system ['true']"), "not valid YAML"),
    "YAML of billions": (
        lambda f: (f / "card.yaml").write_text(
            "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))),
        "with its aliases"),
    "a NUL in YAML": (lambda f: (f / "card.yaml").write_text("a: \0"), "not valid YAML"),
    "an empty card": (lambda f: (f / "card.yaml").write_text("{}"), "card.yaml"),
    "an open card": (
        lambda f: (f / "card.yaml").write_text((f / "card.yaml").read_text().replace("defaults of 1.0", "?")),
        "still to be filled in: submitted_by, contact, solvers.mine.version"),
    "a card of another solver": (
        lambda f: (f / "card.yaml").write_text((f / "card.yaml").read_text().replace("  mine:", "  yours:")),
        "says nothing of solver 'mine'"),
}  # fmt: skip


def outcomes(folder, capsys, commands=("submit", "verify", "leaderboard")):
    """Run what reads a stranger's folder; return what it printed. Nothing may raise, and nothing may be changed."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    said = {}
    for command in commands:
        arguments = [command, str(folder), *(["--format", "md"] if command == "leaderboard" else [])]
        code = main(arguments)
        captured = capsys.readouterr()
        assert code in (0, 1, 2), captured
        assert "unexpected" not in captured.err, captured.err
        assert captured.err.count("\n") <= 1 or "Traceback" not in captured.err
        text = captured.out + captured.err
        assert "\x1b" not in text
        assert command != "leaderboard" or not re.search("<script|<img|<b>", captured.out)
        assert "\n# Rank" not in captured.out
        said[command] = (code, text)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    return said


def test_an_honest_folder_passes(folder, capsys):
    said = outcomes(folder, capsys)
    assert {command: code for command, (code, _) in said.items()} == {"submit": 0, "verify": 0, "leaderboard": 0}, said
    assert "Ready: put" in said["submit"][1]


def test_packed_records_pass_as_plain_ones_do(folder, capsys):
    pack_beside(folder)
    (folder / "records.jsonl").unlink()
    said = outcomes(folder, capsys)
    assert {command: code for command, (code, _) in said.items()} == {"submit": 0, "verify": 0, "leaderboard": 0}, said


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("shardgym.files.MAX_RECORDS_BYTES", "it holds more than 2 MiB, which none of ours does"),
        ("shardgym.evaluation.submission.MAX_BYTES", "2 MiB in all, expected at most 2: submit fewer seeds"),
    ],
)
def test_packed_records_count_unpacked(folder, capsys, monkeypatch, limit, said):
    (folder / "records.jsonl.xz").write_bytes(lzma.compress(bytes(2**21 + 1)))
    (folder / "records.jsonl").unlink()
    monkeypatch.setattr(limit, 2**21)
    code, text = outcomes(folder, capsys, ["submit"])["submit"]
    assert code == 1
    assert said in text


def test_a_folder_without_a_card_is_told_what_else_it_lacks(folder, capsys):
    (folder / "card.yaml").unlink()
    drop_line(folder)
    _, said = outcomes(folder, capsys, ["submit"])["submit"]
    assert "card.yaml is missing" in said
    assert "1 record missing" in said


def test_what_a_card_says_is_text(folder, capsys):
    """Versions, counts and "none" need no quotes."""
    card = folder / "card.yaml"
    text = card.read_text()
    for value in ("1.10", "0", "none", "2026-11-22", "null"):
        card.write_text(text.replace("'defaults of 1.0'", value))
        assert outcomes(folder, capsys, ["submit"])["submit"][0] == 0, value
    card.write_text(text.replace("'defaults of 1.0'", ""))
    code, said = outcomes(folder, capsys, ["submit"])["submit"]
    assert code == 1
    assert "card.yaml: submitted_by: " in said


@pytest.mark.parametrize("commands", [["submit"], pytest.param(["verify", "leaderboard"], marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORGED)
def test_what_is_forged_is_named_and_refused(folder, capsys, name, commands):
    forge, part = FORGED[name]
    forge(folder)
    said = outcomes(folder, capsys, commands)
    if "submit" in said:
        code, text = said["submit"]
        assert code in (1, 2), text
        assert part in text, text


@pytest.mark.parametrize("rounds", [3, pytest.param(2000, marks=pytest.mark.slow)])
def test_any_mutation_is_answered(folder, capsys, rounds):
    """Bytes, values and whole files are changed at random."""
    rng = random.Random(SEED)
    fresh = {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in range(rounds):
        for name, content in fresh.items():
            (folder / name).write_bytes(content)
        for _ in range(rng.randint(1, 3)):
            mutate(folder, rng)
        outcomes(folder, capsys)


def mutate(folder, rng):
    name = rng.choice(["records.jsonl", "run.json", "card.yaml"])
    path = folder / name
    content = path.read_bytes()
    position = rng.randrange(len(content) + 1)
    if rng.random() < 0.5 or name == "card.yaml":
        inserted = rng.randbytes(rng.randint(0, 4)) + rng.choice(
            [b"", b"&a *a", b"!!set", b"\x00", b"\xff\xfe", b"{" * 99]
        )
        path.write_bytes(content[:position] + inserted + content[position + rng.randint(0, 50) :])
        return
    lines = content.split(b"\n")
    number = rng.randrange(len(lines))
    try:
        record = json.loads(lines[number])
    except ValueError:
        return
    node = record
    while isinstance(node, dict | list) and node:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        odd = [
            None,
            -1,
            0,
            10**30,
            1e308,
            "",
            "x" * 5000,
            "\u202e",
            "<b>",
            [],
            {},
            [[]],
            True,
            "../../etc",
            2**63,
            "0" * 64,
        ]
        node[key] = rng.choice(odd)
        break
    lines[number] = json.dumps(record).encode()
    path.write_bytes(b"\n".join(lines))


def test_nothing_but_regular_files_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link") == b"content"
    for path, options, part in [
        (tmp_path / "pipe", {}, "no regular file"),
        ("/dev/zero", {}, "no regular file"),
        (tmp_path, {}, "Is a directory"),
        (tmp_path / "link", {"follow": False}, "it is a link"),
        (tmp_path / "file", {"max_bytes": 6}, "more than"),
        (tmp_path / "fil", {}, "did you mean"),
        ("a\0b", {}, "embedded null"),
    ]:
        with pytest.raises(InputError, match=part):
            read_regular(path, **options)


@pytest.mark.parametrize("name", [".lock", "records.jsonl", "run.json", "errors.log"])
def test_a_run_does_not_write_where_a_link_leads(tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(target)
    with pytest.raises(InputError, match="is a link"), only_writer(tmp_path / "out"):
        pass
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--cost", "os:getcwd"], "is no CostModel"),
        (["--cost", "os:nothing"], "has no class"),
        (["--cost", "roofline,a={}"], "has no setting"),
        (["--cost", "simulator,weights=/dev/zero"], ""),
        (["--cost", "simulator,weights=a\0b"], ""),
    ],
)
def test_odd_arguments_are_one_line(tmp_path, capsys, arguments, part):
    suite = ["--suite", "tiny-v1", "--limit", "1", "--out", str(tmp_path / "out")]
    base = [] if "--solver" in arguments else ["--solver", "random"]
    assert main(["run", *suite, *base, *arguments, "--no-isolate"]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert part in error
    assert "unexpected" not in error
