"""Suites: versioned lists of tasks, as data, and suites of your own."""

from shardgym.tasks.suites.spec import Track
from shardgym.tasks.suites.suite import Suite, digests_path, load_suite, shipped_suite, suite_names

__all__ = ["Suite", "Track", "digests_path", "load_suite", "shipped_suite", "suite_names"]
