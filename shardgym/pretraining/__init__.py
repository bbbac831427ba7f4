"""Pre-training of the simulator: reading samples needs the extra `data`."""
