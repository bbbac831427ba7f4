"""Pre-training of the simulator: everything here needs torch, pyarrow and SciPy (extra `simulator`)."""
