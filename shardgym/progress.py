"""Progress on standard error: bars in a terminal, and log lines above them."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm


def progress_bar(*, shown: bool, **options: Any) -> "tqdm[Any]":
    """Return a bar of tqdm, with these options of it, that shows in a terminal and only if `shown`."""
    return tqdm(disable=None if shown else True, **options)


@contextlib.contextmanager
def log_to_stderr(*, info: bool) -> Iterator[None]:
    """Print log lines to standard error while a command works.

    The loggers are "shardgym" and those below it; solvers, also those of users, log what takes time to
    "shardgym.solvers.NAME".

    Args:
        info: whether to print information, too; otherwise only warnings and errors.
    """
    logger = logging.getLogger("shardgym")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("shardgym: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if info else logging.WARNING)
    try:
        with logging_redirect_tqdm([logger]):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
