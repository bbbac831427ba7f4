"""Running solvers on suites, keeping the results, and checking them."""

from shardgym.evaluation.result import read_records, read_results
from shardgym.evaluation.runner import evaluate
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.evaluation.store import Resume
from shardgym.evaluation.verify import VerifyReport, verify

__all__ = ["Resume", "SolverSpec", "VerifyReport", "evaluate", "read_records", "read_results", "verify"]
