"""What every solver must do, checked on small tasks: `check_solver`."""

from shardgym.evaluation.conformance.check import Check, ConformanceReport, check_solver

__all__ = ["Check", "ConformanceReport", "check_solver"]
