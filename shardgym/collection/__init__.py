"""Collection: measuring the data set that simulators are trained on. Importing this loads neither torch nor pyarrow."""

from shardgym.collection.measurements import Summary
from shardgym.collection.run import collect, finish

__all__ = ["Summary", "collect", "finish"]
