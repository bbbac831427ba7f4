"""Shared parts of learned solvers: table features, set encoders, the training loop, and files of weights and cards."""
