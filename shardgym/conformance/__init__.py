"""What every solver must do, checked on small tasks: `check_solver`."""

from shardgym.conformance.check import check_solver
from shardgym.conformance.report import Check, ConformanceReport

__all__ = ["Check", "ConformanceReport", "check_solver"]
