"""Training the simulator: measuring its data set (`collecting`), and fitting its networks (`pretrain`).

Importing this loads neither torch nor pyarrow.
"""

from shardgym.training.collecting import collect, finish
from shardgym.training.measurements import Summary

__all__ = ["Summary", "collect", "finish"]
