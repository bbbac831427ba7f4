"""Files that survive a kill, and folders that one process writes to."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardgym.errors import InputError
from shardgym.files import (
    append_flushed,
    drop_torn_line,
    make_folder,
    only_writer,
    read_line_file,
    read_lines,
    read_text,
    write_whole,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_regular_files_are_written_over(tmp_path, kind):
    path = Path(os.devnull) if kind == "device" else tmp_path / "path"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    mode = path.stat().st_mode
    with pytest.raises(InputError, match="not a regular file"):
        write_whole(path, "text")
    assert path.stat().st_mode == mode


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    second = only_writer(tmp_path / "new")
    with only_writer(tmp_path / "new"), pytest.raises(InputError, match="another run is writing into"):
        second.__enter__()
    with only_writer(tmp_path / "new"):
        pass


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"), only_writer(tmp_path / "file" / "below"):
        pass


def test_lines_are_appended_and_one_that_was_cut_off_is_dropped(tmp_path):
    path = tmp_path / "lines"
    assert drop_torn_line(path) is None
    append_flushed(path, b"one\ntwo\n")
    append_flushed(path, b"thr")
    assert [(line.number, line.text, line.whole) for line in read_lines(path)] == [
        (1, b"one", True), (2, b"two", True), (3, b"thr", False),
    ]  # fmt: skip
    assert drop_torn_line(path).text == b"thr"
    assert path.read_bytes() == b"one\ntwo\n"
    assert drop_torn_line(path) is None


def packed(path, content=b"one\ntwo\n"):
    path.write_bytes(lzma.compress(content, preset=9))
    return path


def test_packed_lines_are_those_that_were_packed(tmp_path):
    found = read_lines(packed(tmp_path / "lines.xz", b"one\ntwo\nthr"))
    assert [(line.number, line.text, line.whole) for line in found] == [
        (1, b"one", True), (2, b"two", True), (3, b"thr", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-9], "it is cut off"),
        (lambda content: b"", "it is cut off"),
        (lambda content: content + b"x", "something follows its end"),
        (lambda content: content[:20] + b"x" + content[21:], "Corrupt input data"),
        (lambda content: b"one\ntwo\n" * 9, "Input format not supported by decoder"),
    ],
)
def test_a_damaged_packed_file_is_one_line(tmp_path, damage, message):
    path = packed(tmp_path / "lines.xz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"^cannot unpack {re.escape(str(path))}: {message}; expected what 'xz -9'"):
        read_lines(path)


def test_unpacking_takes_no_more_than_a_file_of_records_may(tmp_path, monkeypatch):
    path = packed(tmp_path / "lines.xz", bytes(2**20))
    assert path.stat().st_size < 1000
    monkeypatch.setattr("shardgym.files.MAX_RECORDS_BYTES", 2**20)
    assert read_line_file(path) == bytes(2**20)
    monkeypatch.setattr("shardgym.files.MAX_RECORDS_BYTES", 2**20 - 1)
    with pytest.raises(InputError, match=r"it holds more than 1 MiB, which none of ours does$"):
        read_lines(path)
    monkeypatch.setattr("shardgym.files._UNPACKING_BYTES", 2**16)
    with pytest.raises(InputError, match="Memory usage limit exceeded"):
        read_lines(path)


def test_runs_and_tables_need_no_module_of_posix_alone():
    """On Windows there is no fcntl and no resource, for libraries either."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['fcntl', 'resource', 'pwd', 'grp', 'termios']));"
        "import shardgym.evaluation, shardgym.leaderboard"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"File exists; .*file is a file: give the path of a folder$"):
        make_folder(tmp_path / "file")


def test_a_missing_file_comes_with_a_remedy(tmp_path):
    (tmp_path / "tables.csv").touch()
    for read in (read_lines, read_text):
        with pytest.raises(InputError, match=r"No such file or directory; did you mean .*tables\.csv\?$"):
            read(tmp_path / "tabels.csv")
        with pytest.raises(InputError, match=r"No such file or directory; it is not in the folder .*"):
            read(tmp_path / "other.json")
        with pytest.raises(InputError, match=r"No such file or directory; there is no folder .*below$"):
            read(tmp_path / "below" / "tables.csv")
