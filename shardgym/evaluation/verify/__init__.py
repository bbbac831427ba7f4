"""Checking stored results: every plan is scored again."""

from shardgym.evaluation.verify.check import verify
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.report import VerifyReport

__all__ = ["Checked", "VerifyReport", "verify"]
