"""Files read at the door, files that survive a kill, and folders that one process writes to at a time.

Whatever somebody gives is read by `read_regular`: no pipe, device or endless file gets past it. A file of lines is
opened by `read_line_file`, which unpacks one that is packed.

A file is replaced as a whole. A file of lines grows by whole writes that are flushed to the disk: after a kill
only its last line can be cut off, and a reader sees that.
"""

from __future__ import annotations

import errno
import lzma
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shardgym.errors import InputError, missing_file_remedy

#: Larger files are none of ours: a task of 100,000 tables takes 20 MB.
MAX_BYTES = 2**28
#: Of a file of records, unpacked; the largest in the boards has 9 MB.
MAX_RECORDS_BYTES = 2**29
#: Of one line; the largest in the boards has 10 kB.
MAX_LINE_BYTES = 2**24

#: Ends the name of a packed file.
PACKED = ".xz"
#: What unpacking may take besides the content; `xz -9` needs 65 MiB.
_UNPACKING_BYTES = 2**27


def read_regular(path: str | Path, *, max_bytes: int = MAX_BYTES, follow: bool = True) -> bytes:
    """Return the content of a regular file.

    Args:
        path: the file.
        max_bytes: of a larger file nothing is read.
        follow: whether it may be a link; not for files that are found in somebody's folder.

    Raises:
        InputError: the path is missing, is a folder, pipe, device or such a link, or the file is too large.
    """
    # Opening a pipe that nobody writes to would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            state = os.fstat(file.fileno())
            if stat.S_ISDIR(state.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(state.st_mode):
                raise InputError(f"cannot read {path}: it is no regular file; name a file on a disk")
            content = file.read(max_bytes + 1)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"cannot read {path}: it is a link; put the file itself there") from None
        raise InputError(f"cannot read {path}: {error.strerror}{missing_file_remedy(path)}") from None
    except ValueError as error:  # e.g. a NUL in the path
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {str(path)!r:.80}: {error}") from None
    if len(content) > max_bytes:
        raise InputError(f"cannot read {path}: it has more than {max_bytes / 2**20:,.0f} MiB, which none of ours has")
    return content


def files_below(folder: Path) -> Iterator[Path]:
    """Yield whatever is no folder below a folder, however deep it lies; links are not followed.

    Raises:
        InputError: a folder cannot be read, e.g. as its path is too long.
    """
    folders = [str(folder)]
    while folders:
        path = folders.pop()
        try:
            with os.scandir(path) as entries:
                found = list(entries)
        except OSError as error:
            raise InputError(f"cannot read the folder {path:.200}: {error.strerror}") from None
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                yield Path(entry.path)


def check_regular(path: str | Path) -> None:
    """Refuse what is no regular file, before a library opens it; raises `InputError`."""
    try:
        is_regular = stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path}: {reason}{missing_file_remedy(path)}") from None
    if not is_regular:
        raise InputError(f"cannot read {path}: it is no regular file; name a file on a disk")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new; text in UTF-8, its line ends as they are.

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
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
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
    # Opening a pipe that nobody reads would wait for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
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


def read_line_file(path: Path) -> bytes:
    """Return the content of a file of records, unpacked where its name ends in `.xz`.

    Raises:
        InputError: it cannot be read, is damaged, or holds more than `MAX_RECORDS_BYTES`.
    """
    content = read_regular(path, max_bytes=MAX_RECORDS_BYTES, follow=False)
    if path.suffix != PACKED:
        return content
    unpacking = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_UNPACKING_BYTES)
    try:
        unpacked = unpacking.decompress(content, max_length=MAX_RECORDS_BYTES + 1)
    except lzma.LZMAError as error:
        raise InputError(f"cannot unpack {path}: {error}; expected what 'xz -9' makes of a file of records") from None
    if len(unpacked) > MAX_RECORDS_BYTES:
        raise InputError(
            f"cannot unpack {path}: it holds more than {MAX_RECORDS_BYTES / 2**20:,.0f} MiB, which none of ours does"
        )
    if not unpacking.eof or unpacking.unused_data:
        what = "something follows its end" if unpacking.eof else "it is cut off"
        raise InputError(f"cannot unpack {path}: {what}; expected what 'xz -9' makes of a file of records")
    return unpacked


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file of records; raises `InputError` when it cannot be read or a line is huge."""
    *lines, rest = read_line_file(path).split(b"\n")
    for number, text in enumerate([*lines, rest], start=1):
        if len(text) > MAX_LINE_BYTES:
            raise InputError(f"{path}:{number}: the line has more than {MAX_LINE_BYTES / 2**20:.0f} MiB")
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
        InputError: another process has locked it, it cannot be written, or a file in it is a link to somewhere else.
    """
    from filelock import FileLock, Timeout  # takes a while, and only writers need it

    make_folder(folder)
    _refuse_links(folder)
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


def _refuse_links(folder: Path) -> None:
    """Raise `InputError` when a file of the folder is a link: what is written there would be written elsewhere."""
    for path in folder.iterdir():
        if path.is_symlink():
            raise InputError(f"{path} is a link, and a run would write where it leads: remove it")
