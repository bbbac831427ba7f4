"""Progress on standard error: bars, live in a terminal or a line now and then in a log, and log lines above them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    _Bar = tqdm[Any]
else:
    _Bar = tqdm

#: What differs where standard error is no terminal; what is done within `delay` seconds prints nothing.
LOG_STYLE: dict[str, Any] = {"mininterval": 15.0, "maxinterval": 15.0, "delay": 5.0, "ascii": True, "ncols": 80}


class ProgressBar(_Bar):
    """A bar that does not flood logs.

    Args:
        shown: whether there is a bar at all.
        **options: those of tqdm, e.g. total, unit and desc.
    """

    def __init__(self, *, shown: bool, **options: Any) -> None:
        self._is_live = sys.stderr.isatty()
        style = {} if self._is_live else LOG_STYLE
        super().__init__(**{**options, **style, "disable": not shown, "miniters": 1})

    def remark(self, text: str) -> None:
        """Say what is being done, behind the bar; terminals only."""
        if self._is_live:
            self.set_postfix_str(text)

    @staticmethod
    def status_printer(file: Any) -> Any:
        """Return tqdm's printer for a terminal, or one that prints lines."""
        if file.isatty():
            return tqdm.status_printer(file)
        return lambda text: print(text.strip(), file=file, flush=True) if text.strip() else None


@contextlib.contextmanager
def log_to_stderr(*, info: bool) -> Iterator[None]:
    """Print what is logged on standard error while a command works.

    The loggers are "shardgym" and those below it; solvers, one's own too, log to "shardgym.solvers.NAME" what keeps
    people waiting.

    Args:
        info: whether information is printed, too; otherwise warnings and errors alone.
    """
    logger = logging.getLogger("shardgym")
    handler = _AboveBars()
    handler.setFormatter(logging.Formatter("shardgym: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if info else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _AboveBars(logging.Handler):
    """Prints on standard error, above bars that are live."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        try:
            text = self.format(record)
            if sys.stderr.isatty():
                tqdm.write(text, file=sys.stderr)
            else:
                print(text, file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)
