"""The inner search compiled by numba, for the learned simulator; what runs without numba finds the same plans."""
