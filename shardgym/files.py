"""Files that survive a kill, and folders that one process writes to at a time.

A text file is replaced as a whole. A file of lines grows by whole writes that are flushed to the disk: after a kill
only its last line can be cut off, and a reader sees that.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from shardgym.errors import InputError, missing_file_remedy


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old content or all of the new.

    Raises:
        InputError: the file cannot be written there, or the path is a folder, a device or a pipe.
    """
    if path.exists() and not path.is_file():
        # Renamed over, a device such as /dev/null would be gone.
        raise InputError(f"cannot write {path}: it exists and is not a regular file; name another path")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; results are as readable as any other file of the user.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def append_flushed(path: Path, data: bytes) -> None:
    """Append with one write and flush to the disk: after a kill only a last line can be cut off.

    Raises:
        InputError: the disk took only a part, which was removed again.
    """
    # Without O_BINARY, Windows would turn every line end into two bytes.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags, 0o666)
        try:
            size = os.fstat(handle).st_size
            if os.write(handle, data) < len(data):
                os.ftruncate(handle, size)
                raise OSError(errno.ENOSPC, "only a part could be written; is the disk full?")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


class Line(NamedTuple):
    """One line of a file, without its end.

    Attributes:
        number: from 1.
        text: its bytes.
        whole: False for a last line without its end: a process was killed while writing it.
    """

    number: int
    text: bytes
    whole: bool

    def where(self, path: Path) -> str:
        """Name file and line, for messages."""
        return f"{path}:{self.number}"


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file; raises `InputError` when it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}{missing_file_remedy(path)}") from None
    *lines, rest = content.split(b"\n")
    whole = [Line(number, text, True) for number, text in enumerate(lines, start=1)]
    return whole + ([Line(len(lines) + 1, rest, False)] if rest else [])


def drop_torn_line(path: Path) -> Line | None:
    """Remove a last line that was cut off by a kill, and return it; a file that does not exist has none."""
    lines = read_lines(path) if path.exists() else []
    if not lines or lines[-1].whole:
        return None
    os.truncate(path, path.stat().st_size - len(lines[-1].text))
    return lines[-1]


def make_folder(path: Path) -> None:
    """Make a folder and its parents; raises `InputError` when that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((part for part in (path, *path.parents) if part.is_file()), None)
        remedy = f"; {file} is a file: give the path of a folder" if file is not None else ""
        raise InputError(f"cannot make the folder {path}: {error.strerror}{remedy}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, however it ends.

    Raises:
        InputError: another process has locked it, or it cannot be written.
    """
    make_folder(folder)
    lock = FileLock(folder / ".lock", mode=0o666)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another run is writing into {folder}: wait for it or choose another folder") from None
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
