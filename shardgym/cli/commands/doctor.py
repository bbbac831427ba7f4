"""Say what this machine can measure: cores, memory, GPUs, versions, whether torch and FBGEMM fit together, and
which extras are missing.

Exit code 1 when FBGEMM kernels cannot be measured here; everything that does not measure works all the same.
"""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.output import print_json
from shardgym.cli.parser import Parser
from shardgym.doctor import diagnose


def configure(parser: Parser) -> None:
    """Take no arguments."""
    del parser


def run(arguments: Namespace) -> int:
    """Look and print."""
    found = diagnose()
    if arguments.json:
        print_json(found.to_dict())
    else:
        print("\n".join(found.lines()))
    return 0 if found.ok else 1
