"""TorchRec's own planner and estimators, run on ShardGym's tasks. TorchRec is imported where it is used."""
