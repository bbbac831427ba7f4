"""Files that are there whole or not at all, and folders that one process writes to at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardgym.errors import InputError


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
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; results are as readable as any other file of the user.
        Path(temporary).chmod(0o666 & ~_umask())
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
    try:
        _append(path, data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def _append(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        written = os.write(handle, data)
        if written < len(data):
            os.ftruncate(handle, size)
            raise OSError(28, "only a part could be written; is the disk full?")
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def make_folder(path: Path) -> None:
    """Make a folder and its parents; raises `InputError` when that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path}: {error.strerror}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the system releases it when the process ends, however it ends.

    Raises:
        InputError: another process holds it.
    """
    make_folder(folder)
    try:
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another run is writing into {folder}: wait for it or choose another folder") from None
        yield
