"""Collection: measuring the data set that simulators are trained on. Importing this loads neither torch nor pyarrow."""

from shardgym.collection.run import collect, finish
from shardgym.collection.summary import Summary

__all__ = ["Summary", "collect", "finish"]
