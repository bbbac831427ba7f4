"""Sharding plans: which device holds which rectangle of which table, and what is wrong with a plan."""
