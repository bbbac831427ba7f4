"""Training the simulator: measuring its data set (`collecting`), and fitting its networks (`pretrain`).

Importing this loads neither torch nor pyarrow.
"""

from shardgym.training.collecting import Summary, collect
from shardgym.training.sampling import Space

__all__ = ["Space", "Summary", "collect"]
