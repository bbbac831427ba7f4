"""Running solvers on suites, keeping the results, and checking them."""

from shardgym.evaluation.result import read_records
from shardgym.evaluation.results_table import read_results
from shardgym.evaluation.runner import evaluate
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.evaluation.store import Resume, drop_records
from shardgym.evaluation.verify import VerifyReport, verify

__all__ = ["Resume", "SolverSpec", "VerifyReport", "drop_records", "evaluate", "read_records", "read_results", "verify"]
