"""Text as Criteo's click logs: a label, 13 numbers and 26 columns of hexadecimal ids between tabs, a line per sample.

An empty cell is id 0, as in the readers of DLRM and TorchRec.
"""

from __future__ import annotations

import functools
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.tables.bags import Bags
from shardgym.tables.streams.files import MOST_RECORDED_IDS, ReadOptions, RecordedStream, hash_size_remedy

NUM_NUMBERS = 13
FEATURES = tuple(f"cat_{n}" for n in range(26))
_CELLS = 1 + NUM_NUMBERS + len(FEATURES)
#: Hexadecimal digits of an id.
_DIGITS = 8

#: Bytes that are parsed together; a line is shorter.
_BLOCK = 2**24

_TAB, _LINE_END = b"\t\n"
#: Value of a hexadecimal digit by its code; 255 of other characters.
_VALUES = np.full(256, 255, dtype=np.uint32)
for _value, _pair in enumerate(("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "aA", "bB", "cC", "dD", "eE", "fF")):
    for _character in _pair:
        _VALUES[ord(_character)] = _value


class CriteoStream(RecordedStream):
    """Ids in Criteo-like text, plain or packed by gzip.

    Args:
        path: of the file.
        options: see `RecordedStream`; with a hash size for every feature.

    Raises:
        InputError: a feature has no hash size.
    """

    read_together = len(FEATURES)

    def __init__(self, path: str | Path, options: ReadOptions) -> None:
        super().__init__(path, FEATURES, options)
        lacking = next((feature for feature in self.features if feature not in self.hash_sizes), None)
        if lacking is not None:
            raise InputError(f"{path}: ids of '{lacking}' are hashes of 32 bits: {hash_size_remedy(lacking)}")

    def parts(self, features: Sequence[str]) -> Iterator[dict[str, Bags]]:
        """Yield blocks of lines."""
        columns = [FEATURES.index(feature) for feature in features]
        for ids in _parsed(self.path, columns):
            ones = np.ones(ids.shape[1], dtype=np.int64)
            yield {feature: Bags(of_feature, ones) for feature, of_feature in zip(features, ids, strict=True)}

    def read(self, feature: str) -> Bags:
        """Return all ids of a feature; those of the others are kept, as tables are asked for one after another."""
        (feature,) = self.checked([feature])
        state = self.path.stat()
        columns = _read_columns(str(self.path), self._samples, (state.st_mtime_ns, state.st_size))
        ids = columns[FEATURES.index(feature)]
        return self._as_rows(feature, Bags(ids, np.ones(len(ids), dtype=np.int64)))


@functools.lru_cache(maxsize=1)
def _read_columns(path: str, samples: int | None, _version: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Return all ids of the first samples, shape (26, samples); a changed file is read again."""
    blocks = []
    count = 0
    for ids in _parsed(Path(path), range(len(FEATURES))):
        blocks.append(ids if samples is None else ids[:, : samples - count])
        count += blocks[-1].shape[1]
        if count * len(FEATURES) > MOST_RECORDED_IDS:
            raise InputError(
                f"{path}: has more than the {MOST_RECORDED_IDS // len(FEATURES)} samples that a recording may have: "
                "take fewer"
            )
        if count == samples:
            break
    return np.concatenate(blocks, axis=1) if blocks else np.zeros((len(FEATURES), 0), dtype=np.uint32)


def _parsed(path: Path, columns: Sequence[int]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield ids of some columns, shape (columns, lines), block after block.

    Raises:
        InputError: the file cannot be read or unpacked, or a line is none of such text; the message has its number.
    """
    lines = 0
    rest = b""
    try:
        with _opened(path) as file:
            while block := file.read(_BLOCK):
                whole, end, left = (rest + block).rpartition(b"\n")
                rest = left if end else whole + left
                if len(rest) > _BLOCK:
                    raise InputError(f"{path}, line {lines + 1}: has no end, expected {_CELLS} cells between tabs")
                if end:
                    yield _block_ids(path, whole + end, lines, columns)
                    lines += whole.count(b"\n") + 1
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if rest.strip():
        yield _block_ids(path, rest + b"\n", lines, columns)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def _block_ids(path: Path, block: bytes, lines_before: int, columns: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return the ids of whole lines, shape (columns, lines)."""
    text = np.frombuffer(block.replace(b"\r\n", b"\n"), dtype=np.uint8)
    marks = np.flatnonzero((text == _TAB) | (text == _LINE_END))
    ends = _cell_ends(path, text, marks, lines_before)
    ids = np.zeros((len(columns), len(ends)), dtype=np.uint32)
    for place, column in enumerate(columns):
        cell = 1 + NUM_NUMBERS + column
        last = ends[:, cell]
        digits = last - ends[:, cell - 1] - 1
        for digit in range(min(int(digits.max(initial=0)), _DIGITS)):
            values = np.where(digit < digits, _VALUES[text[last - 1 - digit]], 0)
            digits[values > 15] = _DIGITS + 1
            ids[place] |= values << np.uint32(4 * digit)
        wrong = np.flatnonzero(digits > _DIGITS)
        if len(wrong):
            line = int(wrong[0])
            found = bytes(text[ends[line, cell - 1] + 1 : last[line]]).decode(errors="replace")
            raise InputError(
                f"{path}, line {lines_before + line + 1}, {FEATURES[column]}: expected up to 8 hexadecimal digits, got "
                f"'{found:.40}'"
            )
    return ids


def _cell_ends(path: Path, text: npt.NDArray[np.uint8], marks: Ints, lines_before: int) -> Ints:
    """Return where the cells of each line end, shape (lines, 40)."""
    line_ends = np.flatnonzero(text[marks] == _LINE_END)
    cells = np.diff(line_ends, prepend=-1)
    wrong = np.flatnonzero(cells != _CELLS)
    if len(wrong):
        raise InputError(
            f"{path}, line {lines_before + int(wrong[0]) + 1}: has {cells[wrong[0]]} cells between tabs, expected "
            f"{_CELLS}: a label, {NUM_NUMBERS} numbers and {len(FEATURES)} hexadecimal ids"
        )
    return marks.reshape(-1, _CELLS)
