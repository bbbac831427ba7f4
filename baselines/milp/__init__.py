"""Milp: an exact planner over kinds of sharding, devices and memory, on HiGHS."""
