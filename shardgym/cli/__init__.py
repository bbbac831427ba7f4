"""The `shardgym` command: a thin layer over the Python API.

Exit codes: 0 done, 1 a result failed, 2 bad usage or input, 130 interrupted. One line on standard error says why.
"""

from shardgym.cli.entry import main

__all__ = ["main"]
