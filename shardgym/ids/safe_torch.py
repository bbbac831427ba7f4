"""Reading `.pt` and `.pt.gz` files without ever running code that they contain."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

from shardgym.errors import InputError


def load_tensors(path: str | Path) -> Any:
    """Return the content of a `.pt` or `.pt.gz` file, tensors in main memory.

    Only tensors and plain containers are accepted (`torch.load` with `weights_only=True`). A compressed file is
    unpacked into the folder for temporary files first, and mapped rather than read into memory.

    Raises:
        InputError: the file is missing, truncated, no torch file, or holds anything but tensors.
    """
    if not str(path).endswith(".gz"):
        return _load(Path(path), str(path))
    with tempfile.NamedTemporaryFile(suffix=".pt") as unpacked:
        try:
            with gzip.open(path) as packed:
                shutil.copyfileobj(packed, unpacked, 2**20)
            unpacked.flush()
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be unpacked ({error}); is it a whole gzip file?") from None
        return _load(Path(unpacked.name), str(path))


def _load(path: Path, shown: str) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that no torch wrote, which are refused or read all the same
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise InputError(f"cannot read {shown}: {error.strerror or error}") from None
    except Exception as error:  # damaged and hostile files make the reader raise all kinds of errors
        why = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        raise InputError(f"{shown}: not a torch file of plain tensors ({why})") from None
