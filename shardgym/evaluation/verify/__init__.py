"""Checking stored results: every plan is scored again."""

from shardgym.evaluation.verify.agreement import RULE
from shardgym.evaluation.verify.check import verify
from shardgym.evaluation.verify.records import RecordCheck, VerifyReport

__all__ = ["RULE", "RecordCheck", "VerifyReport", "verify"]
