"""Running solvers on suites, keeping the results, and checking them."""

from shardgym.evaluation.entrant import SolverSpec
from shardgym.evaluation.resume import Resume
from shardgym.evaluation.runner import evaluate
from shardgym.evaluation.store import read_records
from shardgym.evaluation.verify import VerifyReport, verify

__all__ = ["Resume", "SolverSpec", "VerifyReport", "evaluate", "read_records", "verify"]
