"""Files that survive a kill, and folders that one process writes to."""

import lzma
import os
from pathlib import Path

import pytest

from shardgym import files
from shardgym.errors import InputError
from shardgym.files import append_flushed, drop_torn_line, only_writer, read_lines, read_text, write_whole


def test_a_file_is_written_whole_and_readable_by_others(tmp_path):
    path = tmp_path / "a.txt"
    write_whole(path, "old")
    write_whole(path, "new")
    umask = os.umask(0)
    os.umask(umask)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["folder", "device"])
def test_only_regular_files_are_written_over(tmp_path, kind):
    path = Path(os.devnull) if kind == "device" else tmp_path
    with pytest.raises(InputError, match="not a regular file"):
        write_whole(path, "text")


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    second = only_writer(tmp_path / "new")
    with only_writer(tmp_path / "new"), pytest.raises(InputError, match="another run is writing into"):
        second.__enter__()
    with only_writer(tmp_path / "new"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot create the folder"), only_writer(tmp_path / "file" / "below"):
        pass


@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_told_from_one_that_was_cut_off(tmp_path, packed):
    path = tmp_path / ("lines.xz" if packed else "lines")
    path.write_bytes(lzma.compress(b"one\n") + lzma.compress(b"two\nthr") if packed else b"one\ntwo\nthr")
    assert [(line.number, line.text, line.whole) for line in read_lines(path)] == [
        (1, b"one", True), (2, b"two", True), (3, b"thr", False),
    ]  # fmt: skip


def test_a_line_that_was_cut_off_is_dropped_before_others_are_appended(tmp_path):
    path = tmp_path / "lines"
    assert drop_torn_line(path) is None
    append_flushed(path, b"one\ntwo\n")
    append_flushed(path, b"thr")
    dropped = drop_torn_line(path)
    assert dropped is not None
    assert dropped.text == b"thr"
    assert path.read_bytes() == b"one\ntwo\n"
    assert drop_torn_line(path) is None


@pytest.mark.parametrize(
    "content", [b"one\ntwo\n" * 9, lzma.compress(b"one\n")[:-9], b"x", lzma.compress(bytes(2**20 + 1))]
)
def test_a_packed_file_that_is_damaged_or_too_large_is_one_line(tmp_path, monkeypatch, content):
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    path = tmp_path / "lines.xz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"unpacks to more than 1 MiB" if len(content) > 99 else "cannot unpack"):
        read_lines(path)


@pytest.mark.parametrize("read", [read_lines, read_text])
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(InputError, match=r"^cannot read .*tabels\.csv: there is no such file$"):
        read(tmp_path / "tabels.csv")
