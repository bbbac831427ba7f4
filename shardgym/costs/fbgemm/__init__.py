"""Measured cost: FBGEMM kernels and all-to-alls in worker processes. Importing this loads neither torch nor FBGEMM."""
