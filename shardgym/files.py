"""Files that are replaced as a whole or grow by whole lines, and folders that one process writes to at a time.

After a kill only the last line of a file of lines can be cut off, and a reader sees that.
"""

import lzma
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shardgym.errors import InputError

#: Ends the name of a packed file.
PACKED = ".xz"
#: Of what is unpacked; no records are larger.
MAX_BYTES = 2**28


def check_file(path: str | Path) -> None:
    """Raise `InputError` unless there is such a file."""
    if not Path(path).is_file():
        raise InputError(f"cannot read {path}: there is no such file")


def read_bytes(path: str | Path) -> bytes:
    """Return the content of a file, unpacked where its name ends in `.xz`; raises `InputError` when that fails."""
    check_file(path)
    try:
        if Path(path).suffix != PACKED:
            return Path(path).read_bytes()
        with lzma.open(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (EOFError, lzma.LZMAError) as error:
        raise InputError(f"cannot unpack {path}: {error}; expected a records file compressed with xz") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{path} unpacks to more than {MAX_BYTES >> 20} MiB: expected a file of records")
    return content


def read_text(path: str | Path) -> str:
    """Return a UTF-8 text file, with or without a byte-order mark; raises `InputError` when that fails."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not a UTF-8 text file") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new; raises `InputError` when that fails."""
    if path.exists() and not path.is_file():
        # A rename would replace a device such as /dev/null.
        raise InputError(f"cannot write {path}: it is not a regular file; name another path")
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # Temporary files are private; results are as readable as any other file of the user.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def append_flushed(path: Path, data: bytes) -> None:
    """Append whole lines with one write and flush them to the disk.

    Raises:
        InputError: the disk took only a part, which was removed again.
    """
    try:
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            if file.write(data) < len(data):
                file.truncate(size)
                raise InputError(f"cannot write {path}: only a part could be written; is the disk full?")
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


class Line(NamedTuple):
    """One line of a file, without its end."""

    number: int  #: from 1
    text: bytes
    whole: bool  #: False for a last line without its end: a process was killed while writing it

    def where(self, path: Path) -> str:
        """Name file and line, for messages."""
        return f"{path}:{self.number}"


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file of records; raises `InputError` when it cannot be read."""
    *lines, rest = read_bytes(path).split(b"\n")
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
        raise InputError(f"cannot create the folder {path}: {error.strerror}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process ends, however it ends.

    Raises:
        InputError: another process has locked it, or it cannot be written.
    """
    from filelock import FileLock, Timeout  # takes a while, and only writers need it

    make_folder(folder)
    try:
        lock = FileLock(folder / ".lock", mode=0o666)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another run is writing into {folder}: wait for it or choose another folder") from None
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
