"""What a model's embeddings would take on other machines: GPUs by name, in any number."""

from shardgym.evaluation.sweep.machines import Machine, task_on
from shardgym.evaluation.sweep.run import sweep

__all__ = ["Machine", "sweep", "task_on"]
