"""`python -m shardgym` is the `shardgym` command."""

import sys

from shardgym.cli import main

if __name__ == "__main__":
    sys.exit(main())
