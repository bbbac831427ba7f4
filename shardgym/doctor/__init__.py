"""What this machine can measure, and with which versions."""

from shardgym.doctor.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
