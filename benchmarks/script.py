"""How a benchmark ends: errors that ShardGym raises on purpose are one line on standard error, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from shardgym.errors import ShardGymError


def run_script(main: Callable[[], None]) -> int:
    """Run `main`; returns the exit code: 0, or that of the error (2 for bad usage or input, 1 for a failed result)."""
    try:
        main()
    except ShardGymError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    return 0
